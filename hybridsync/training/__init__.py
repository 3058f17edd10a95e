"""The training itself: task, optimizer, state, the compiled programs, snapshots of the state."""
