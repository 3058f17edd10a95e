"""What worker processes do on a GPU, beside plain JAX: see `__main__.py`."""
