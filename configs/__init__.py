"""One recipe a file: `config()`, `task(config)` and `optimizer(config)`.

What loads JAX is imported inside them, so that a supervisor, which needs the values alone, starts seconds sooner.
"""
