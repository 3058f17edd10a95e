"""Roles that speak over gRPC: the protocol, its codec, for each port a servicer and a client of its shape.

`hybridsync.proto` documents the protocol. A role process puts all its servicers on one server and one port:

    server, address = make_server([ChiefServicer(chief), HolderServicer(chief)])
    server.start()
"""
