"""A host's processes: starts, watches and kills them as the supervisor orders."""
