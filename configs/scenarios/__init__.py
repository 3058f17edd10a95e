"""Clusters and what happens to them, for `hybridsync simulate --scenario`."""
