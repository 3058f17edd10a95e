"""Drivers: threads in one process, or processes over gRPC."""
