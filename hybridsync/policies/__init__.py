"""Decisions about when and how to switch, without IO, the same in the real runtimes and the simulator."""
