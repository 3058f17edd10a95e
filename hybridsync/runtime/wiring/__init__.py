"""How a role is assembled, whatever carries its messages."""
