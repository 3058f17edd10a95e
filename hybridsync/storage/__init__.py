"""State that survives a crash: durable files, checkpoints, the apply log, the job history."""
