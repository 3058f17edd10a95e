"""Roles that speak over gRPC: the protocol, its codec, for each port a servicer and a client of its shape.

`hybridsync.proto` documents the protocol. `transport.GrpcTransport` puts all of a role's servicers on one port.
"""

import os

# gRPC writes a line to standard error for each handshake that fails, and so a stranger could fill the disk of the logs.
# Errors that matter reach the caller by name. The variable has to be set before gRPC is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
