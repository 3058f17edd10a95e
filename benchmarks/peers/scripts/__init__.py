"""One script for each other system, run by the interpreter of its own environment; imports nothing."""
