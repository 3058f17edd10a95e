"""Clusters and what happens to them, for `launch.simulate --scenario`."""
