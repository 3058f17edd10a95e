"""A Ray cluster of raylets on this machine: `PYTHON -m tests.integration.ray_cluster NODES` in Ray's environment.

It prints the cluster's address, and ends with its input. The first raylet has no CPUs: others get what is placed.
"""

from __future__ import annotations

import sys

STORE_BYTES = 80 << 20


def main() -> None:
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]: of Ray's environment

    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(int(sys.argv[1])):
            cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES)
        print(f"address {cluster.address}", flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
