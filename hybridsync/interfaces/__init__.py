"""The messages of roles, the calls that they may make on each other, and the phase in which they do."""
