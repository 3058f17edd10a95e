"""The parameter server: a core without IO, the primary, the servers that follow it, and the state in parts."""
