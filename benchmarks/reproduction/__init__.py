"""Claims of the four papers beside what this project measures: `python -m benchmarks.reproduction run`, then `page`.

An experiment is a file in `experiments/`. It names its cells, each of which is measured once and kept as a row of
`docs/reproduction/NAME.csv`, and says what it reports of them.
"""
