"""What is trained and how: task, optimizer, state, the compiled programs, snapshots of the state."""
