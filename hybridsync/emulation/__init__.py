"""Emulated accelerators and links, with which a machine stands for a slower or an uneven one."""
