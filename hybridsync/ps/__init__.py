"""The parameter server: state store, the primary that runs a protocol's rule, links to it."""
