"""TCP as the carrier of buffers between hosts."""
