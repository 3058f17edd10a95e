"""The process of a role: its line to the supervisor, its parts, its program."""
