"""Virtual time: the real controller, chief and protocols around simulated roles, from one seed, in one process."""
