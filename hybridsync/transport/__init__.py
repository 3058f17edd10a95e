"""Lets roles reach each other: what a transport is (`link`), between threads (`inprocess`), over gRPC (`grpc`)."""
