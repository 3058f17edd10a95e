"""Which devices a worker computes on, and where the leaves of its arrays lie on them."""
