"""Sums among the processes of one host, through memory that all of them have mapped. No JAX process group is needed."""
