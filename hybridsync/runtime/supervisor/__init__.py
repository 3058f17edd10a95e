"""The parent process of a run's roles: what it decides, and what it keeps for that."""
