"""The transport between processes: the one place that names it."""

from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.transport.link import Transport

PROCESSES: Transport = GrpcTransport()
