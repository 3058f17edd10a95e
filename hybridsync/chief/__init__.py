"""The chief: ledger, membership, grants, and the service that workers and servers talk to."""
