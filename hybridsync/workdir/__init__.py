"""The start of a run: its folder, the newest checkpoint in it, the plan that a search has found."""
