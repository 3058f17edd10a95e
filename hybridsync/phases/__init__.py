"""Phase changes: a pure machine, and the controller that carries it out."""
