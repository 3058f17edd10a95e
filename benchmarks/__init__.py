"""Scripts that measure what the project claims; each prints its figures."""
