"""Other systems on the same work as ours, in turns: `python -m benchmarks.peers`. This file imports nothing.

The scripts run in environments of their own, where neither JAX nor the framework is installed.
"""
