"""Worker-side engines: one driver of worker programs, one engine for each path."""
