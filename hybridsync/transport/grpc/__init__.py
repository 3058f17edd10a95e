"""Roles that speak over gRPC: the protocol, its codec, for each port a servicer and a client of its shape.

`hybridsync.proto` documents the protocol. `transport.GrpcTransport` puts all of a role's servicers on one port.
"""
