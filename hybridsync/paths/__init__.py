"""What a worker trains with: its loop over phases, its replica, its links and collectives, what it records."""
