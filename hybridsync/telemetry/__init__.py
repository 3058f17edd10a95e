"""What a run leaves behind and shows while it goes on; the chief is the only one who writes it."""
