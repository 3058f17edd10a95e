"""The simulated grid of `benchmarks.protocols`: its cells, their runs, and what they come to."""
