"""Run one host of a run on several: `hybridsync host --head=HOST:PORT --index=I --hosts=N --config=FILE --workdir=DIR`.

The same line runs on every host, with another --index, and takes all flags of `hybridsync train`. Host 0 is the head:
it supervises the run. The others attach to it, and start the roles that it assigns. The configuration, the workdir and
the package lie under the same paths on all of them. If --head, --index and --hosts are left out, HYBRIDSYNC_HEAD,
HYBRIDSYNC_INDEX and HYBRIDSYNC_HOSTS replace them, or the environment of the cluster manager: Slurm, or Kubernetes with
JobSet.

Exit codes, on every host: 0 complete, 75 saved (run again) or asked to leave, 1 refused input, 70 our fault.
"""

from __future__ import annotations

import os
import sys

from absl import flags, logging

from hybridsync.cli import cluster_flags, train
from hybridsync.cli.command import reports_errors, run
from hybridsync.cli.standard_streams import outlast
from hybridsync.cluster.discovery import DEFAULT_PORT, Place, discover
from hybridsync.core.errors import ConfigError
from hybridsync.core.paths import local_path
from hybridsync.runtime.agent.fork_server import is_role
from hybridsync.runtime.agent.host_resources import check_xla_flags
from hybridsync.runtime.cluster_spec import ClusterSpec, own_address
from hybridsync.runtime.processes import attach, supervise

FLAGS = flags.FLAGS
flags.DEFINE_string("head", "", f"address of the head, HOST or HOST:PORT; port {DEFAULT_PORT} where none is named")
flags.DEFINE_integer("index", None, "number of this host; 0 is the head", lower_bound=0)
flags.DEFINE_string("address", "", "this host's address, at which its roles serve; by default the one towards the head")
flags.adopt_module_key_flags(cluster_flags)
flags.register_validator("runtime", lambda value: value == "processes", "several hosts need --runtime=processes")


def cluster_of(place: Place) -> ClusterSpec:
    """Return what the flags say of this host.

    Raises:
      ConfigError: no certificates are named.
      AddressError: the head's name has no address, or none that other hosts reach, or there is no route to it.
    """
    if not FLAGS.certs:
        raise ConfigError(
            "--certs is missing: hosts know each other by certificates; make them with hybridsync certs init, and "
            "hybridsync certs issue for each host but the head"
        )
    return ClusterSpec(
        place.head,
        place.index,
        place.hosts,
        address=FLAGS.address or own_address(place),
        certificates=local_path(FLAGS.certs),
        slots=FLAGS.slots,
        collectives_network=FLAGS.collectives_network,
    )


@reports_errors
def main(argv: list[str]) -> int:
    """Be the head, another host, or a role of theirs."""
    if is_role():
        return train.main(argv)
    outlast()
    logging.set_verbosity(logging.WARNING)
    if len(argv) > 1:
        raise ConfigError(f"unexpected argument {argv[1]!r}; every option is written --name=value")
    check_xla_flags()
    cluster_flags.check_one_host()
    cluster = cluster_of(discover(os.environ, head=FLAGS.head, index=FLAGS.index, hosts=FLAGS.hosts))
    launch = train.launch_of_flags(supervises=True, program="hybridsync.cli.host", cluster=cluster)
    return supervise(launch) if cluster.is_head else attach(launch, cluster)


if __name__ == "__main__":
    run(sys.modules[__name__])
