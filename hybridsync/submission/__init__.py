"""Hands a job to a cluster and follows it: Slurm, Ray, or hosts that are reached by ssh."""
