"""The search for a job's switch point, made with real or simulated runs, recorded, and resumable at any moment."""
