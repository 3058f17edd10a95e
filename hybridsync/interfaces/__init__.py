"""What roles say to each other and may call on each other, and the phase in which they do."""
