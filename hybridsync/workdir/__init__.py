"""What a run starts from: its folder, the newest checkpoint in it, the plan that a search has found."""
