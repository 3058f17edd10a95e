"""Virtual time: the real manager, chief and protocols around simulated roles, from one seed, in one process."""
