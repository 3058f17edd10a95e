"""Make the certificates by which the hosts of a cluster know each other.

`hybridsync certs init --folder=DIR` makes a certificate authority (ca.pem, ca.key) and the head's own certificate
(head.pem, head.key) in DIR, which stays on the head. `hybridsync certs issue --folder=DIR --host=INDEX --out=DIR2`
makes a folder for another host: ca.pem, host.pem, host.key. Nothing is overwritten; with --replace a host's folder gets
another certificate, which a running host takes up.

`hybridsync certs rotate --folder=DIR` gives the head another certificate. The running job whose head it is then gives
all its roles new certificates and a new token. --authority=begin, use and end exchange the authority in three steps;
after each step every host gets a new folder. `hybridsync certs revoke --folder=DIR --host=INDEX` takes back what was
issued for a host until now. Exit codes: 0 done, 1 refused and nothing was changed.
"""

from __future__ import annotations

import sys

from absl import flags

from hybridsync.cli.command import reports_errors, run
from hybridsync.cli.standard_streams import outlast
from hybridsync.config.keywords import did_you_mean
from hybridsync.core.errors import EXIT_COMPLETED, ConfigError
from hybridsync.core.paths import local_path
from hybridsync.security.cluster_certificates import init, issue, revoke, rotate

ACTIONS = ("init", "issue", "rotate", "revoke")

FLAGS = flags.FLAGS
flags.DEFINE_string("folder", "", "of the certificate authority; who can read it can be any role of the cluster's runs")
flags.DEFINE_integer("host", None, "index of the host that gets a certificate; the head is host 0", lower_bound=1)
flags.DEFINE_string("out", "", "folder that is made for that host")
flags.DEFINE_enum("authority", None, ["begin", "use", "end"], "which step of exchanging the authority is made")
flags.DEFINE_bool("replace", False, "let a certificate take the place of that host's former one")
flags.DEFINE_integer("days", 365, "how long a certificate is good for", lower_bound=1, upper_bound=3650)


def made(action: str) -> str:
    """Do what the command line says; returns what the user is told.

    Raises:
      HybridSyncError: the step was refused, and nothing was made.
    """
    if action not in ACTIONS:
        raise ConfigError(f"there is no {action!r} of certificates; {did_you_mean(action, ACTIONS)}")
    if not FLAGS.folder:
        raise ConfigError("name the folder of the certificate authority: --folder=DIR")
    folder = local_path(FLAGS.folder)
    if FLAGS.authority is not None and action != "rotate":
        raise ConfigError("--authority belongs to hybridsync certs rotate; leave it out")
    if action in ("init", "rotate"):
        if FLAGS.host is not None or FLAGS.out or FLAGS.replace:
            raise ConfigError("--host, --out and --replace belong to hybridsync certs issue; leave them out")
        return init(folder, FLAGS.days) if action == "init" else rotate(folder, FLAGS.days, FLAGS.authority)
    if action == "revoke":
        if FLAGS.host is None or FLAGS.out or FLAGS.replace:
            raise ConfigError("name the host whose certificates are revoked, and nothing else: --host=INDEX")
        return revoke(folder, FLAGS.host)
    if FLAGS.host is None or not FLAGS.out:
        raise ConfigError("name the host and a folder for it: --host=INDEX --out=DIR")
    return issue(folder, FLAGS.host, local_path(FLAGS.out), FLAGS.days, replace=FLAGS.replace)


@reports_errors
def main(argv: list[str]) -> int:
    """Make what the command line names."""
    outlast()  # the certificates count, not their display
    if len(argv) != 2:
        raise ConfigError("say what to make; write hybridsync certs init, issue, rotate or revoke")
    print(made(argv[1]))
    return EXIT_COMPLETED


if __name__ == "__main__":
    run(sys.modules[__name__])
