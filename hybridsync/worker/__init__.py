"""A worker's part in a phase: an engine for each mode yields requests, and drivers carry them out."""
