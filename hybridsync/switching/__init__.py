"""Phase changes: a pure machine, and the manager that carries it out."""
