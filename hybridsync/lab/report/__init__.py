"""One page that shows what a run did, made from the files it left: reading -> model -> charts and lanes -> page."""
