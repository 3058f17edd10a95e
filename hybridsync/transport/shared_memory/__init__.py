"""Buffers between the processes of one host: they stay in memory that both have mapped, and a socket tells of them."""
