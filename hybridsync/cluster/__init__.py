"""Which hosts a run has, and which roles run where; pure."""
