"""Writes what a run leaves behind, and shows how it goes on; the chief is the only one who writes it."""
