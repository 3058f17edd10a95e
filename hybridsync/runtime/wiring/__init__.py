"""Where a transport or a collective backend is chosen: a new one is a line in one file."""
