"""Determines the hosts of a run, and which roles run on each; pure."""
