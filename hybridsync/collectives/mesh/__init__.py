"""Collectives over the devices of a `jax.distributed` process group."""
