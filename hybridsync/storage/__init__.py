"""What must survive a crash: durable files, checkpoints, the apply log, the job history."""
