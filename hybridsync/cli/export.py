"""Write a trained model for other programs: `hybridsync export RUN --to=orbax|flax|safetensors --out=PATH [--best]`.

RUN is the --workdir of a run that is not running. The newest checkpoint is taken, or with --best the one that the
callback KeepBest has kept. Exit codes: 0 written, 1 there is nothing to export or no place for it, 70 our fault.
"""

from __future__ import annotations

import sys

from absl import flags, logging

from hybridsync.cli.command import reports_errors, run
from hybridsync.cli.standard_streams import ends_with_its_reader
from hybridsync.core.errors import EXIT_COMPLETED, ConfigError

FLAGS = flags.FLAGS
flags.DEFINE_enum(
    "to", "orbax", ["orbax", "flax", "safetensors"], "format: an Orbax checkpoint, or a file of the others"
)
flags.DEFINE_string("out", None, "new folder (orbax) or file", required=True)
flags.DEFINE_bool("best", False, "export the checkpoint that KeepBest has kept")


@ends_with_its_reader
@reports_errors
def main(argv: list[str]) -> int:
    """Write the model of the run that the command line names."""
    logging.set_verbosity(logging.WARNING)
    if len(argv) != 2:
        raise ConfigError(f"{len(argv) - 1} runs were named; write hybridsync export RUN --out=PATH")
    from hybridsync.workdir.export import export

    print(f"written: {export(argv[1], FLAGS.out, FLAGS.to, best=FLAGS.best)}")
    return EXIT_COMPLETED


if __name__ == "__main__":
    run(sys.modules[__name__])
