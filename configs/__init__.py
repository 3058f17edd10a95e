"""One recipe a file: `config()`, `task(config)` and `optimizer(config)`."""
