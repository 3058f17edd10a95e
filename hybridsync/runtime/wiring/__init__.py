"""Puts each role together, once for all runtimes. A new transport or collective backend is a line in one file."""
