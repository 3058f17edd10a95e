"""How roles reach each other."""
