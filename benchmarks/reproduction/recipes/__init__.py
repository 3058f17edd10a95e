"""Configuration files of jobs that the experiments alone have."""
