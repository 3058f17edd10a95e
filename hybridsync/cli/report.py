"""Show what runs did: `hybridsync report RUN [RUN2 ...] [--out=FILE]` writes one HTML page.

The folder of a search (`hybridsync tune`) gives a page of the search's path. The page needs no network and no other
file. Exit codes: 0 written, 1 there is no run to show, 70 our fault.
"""

from __future__ import annotations

import sys
from pathlib import Path

from absl import flags

from hybridsync.cli.command import run
from hybridsync.cli.standard_streams import ends_with_its_reader
from hybridsync.core.errors import EXIT_COMPLETED, ConfigError, HybridSyncError, WorkdirError
from hybridsync.report.page import page
from hybridsync.report.reading import read_runs, read_search
from hybridsync.report.search import search_page
from hybridsync.storage.durable import local_path, private

FLAGS = flags.FLAGS
flags.DEFINE_string("out", None, "file to write; by default report.html in the first run's workdir")

REPORT_FILE = "report.html"


def write_report(workdirs: list[str], out: str | None) -> Path:
    """Write the page of the runs, or of the search, in `workdirs` and return its path.

    Raises:
      WorkdirError: a folder holds no run, a run without anything to show, or a damaged file; a path is not a folder, or
        cannot be read; or the disk refuses.
    """
    for folder in (*workdirs, out or ""):
        local_path(folder)
    path = Path(out) if out else Path(workdirs[0]) / REPORT_FILE
    try:
        found = read_search(Path(workdirs[0])) if len(workdirs) == 1 else None
        text = page(read_runs(workdirs)) if found is None else search_page(Path(workdirs[0]).resolve().name, found)
    except OSError as error:
        raise WorkdirError(
            f"cannot read {error.filename}: {error.strerror}; name the --workdir of a run that you have access to"
        ) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        named = ", ".join(workdirs)
        raise WorkdirError(f"a file in {named} is damaged ({error!r:.120}); restore the damaged file") from error
    try:
        with open(path, "w", encoding="utf-8", opener=None if out else private) as file:
            file.write(text)
    except OSError as error:
        raise WorkdirError(f"cannot write {path}: {error.strerror}; name another file with --out") from None
    return path


@ends_with_its_reader
def main(argv: list[str]) -> int:
    """Write the page of the runs that the command line names."""
    try:
        if len(argv) < 2:
            raise ConfigError("no run was named; write hybridsync report RUN [RUN2 ...] [--out=FILE]")
        print(f"written: {write_report(argv[1:], FLAGS.out)}")
    except HybridSyncError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return EXIT_COMPLETED


if __name__ == "__main__":
    run(sys.modules[__name__])
