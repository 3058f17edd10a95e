"""Writes addresses."""

from __future__ import annotations


def at_port(host: str, port: int = 0) -> str:
    """Write an address as gRPC takes it.

    >>> at_port("127.0.0.1"), at_port("::1", 4711)
    ('127.0.0.1:0', '[::1]:4711')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
