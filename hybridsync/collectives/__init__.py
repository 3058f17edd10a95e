"""Sums and means over the members of a phase, between threads or over a process group."""
