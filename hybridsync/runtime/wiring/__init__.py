"""Puts each role together, once for all runtimes. A new collective backend is a line in `backends`."""
