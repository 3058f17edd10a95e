"""Show what runs did: `hybridsync report RUN [RUN2 ...] [--out=FILE]` writes one HTML page.

The folder of a search (`hybridsync tune`) gives a page of the search's path. The page needs no network and no other
file. `--csv=FILE`, `--svg=FILE` and `--at=VALUE` compare the runs by groups instead, in a table and a figure; `--out`
writes the page as well. Of several runs, those that cannot be shown are named with the reason, and the others are
shown. Exit codes: 0 written, 1 there is no run to show, 70 our fault.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from absl import flags

from hybridsync.cli.command import reports_errors, run
from hybridsync.cli.standard_streams import ends_with_its_reader
from hybridsync.core.errors import EXIT_COMPLETED, ConfigError, WorkdirError
from hybridsync.core.paths import local_path
from hybridsync.lab.report.groups import OVER
from hybridsync.lab.report.page import page
from hybridsync.lab.report.reading import named, read_search, refusing, shown_record
from hybridsync.lab.report.results import compare, read_run
from hybridsync.lab.report.search import search_page
from hybridsync.storage.durable import private
from hybridsync.telemetry.run_record import Record

FLAGS = flags.FLAGS
flags.DEFINE_string("out", None, "page to write; by default report.html in the first run's workdir")
flags.DEFINE_string("csv", None, "file for a table with mean, deviation and number of runs a group")
flags.DEFINE_string("svg", None, "file for a figure with each group's mean and a band of one deviation around it")
flags.DEFINE_list("group", None, "key of the configuration to group by, such as plan, or several: plan,workers")
flags.DEFINE_float("at", None, "accuracy (of --figure) to which the table says the time and the units")
flags.DEFINE_string("figure", None, "figure of the evaluations; by default the accuracy, or else the loss")
flags.DEFINE_enum("x", "secs", [*OVER], "what the figure is drawn over")

REPORT_FILE = "report.html"


def write_report(workdirs: list[str], out: str | None, by: Sequence[str] = ()) -> Path:
    """Write the page of the runs (in groups `by` keys of the configuration), or of the search, and return its path.

    Of several runs, each that cannot be shown is named on stderr and on the page.

    Raises:
      WorkdirError: none of the folders holds a run that can be shown: one without anything to show, or with a damaged
        file; a path is not a folder, or cannot be read; or the disk refuses.
    """
    runs, path = named([local_path(folder) for folder in workdirs]), local_path(out) if out else None
    if len(runs) == 1:
        ((name, folder),) = runs.items()
        with refusing(folder):
            found = read_search(folder)
            text = page([shown_record(folder, name)]) if found is None else search_page(folder.resolve().name, found)
    else:
        records, reasons = _usable(runs)
        for reason in reasons:
            print(f"left out: {reason}", file=sys.stderr)
        if not records:
            raise WorkdirError(f"none of the {len(runs)} runs can be shown; name one that can")
        folder, text = runs[records[0].name], page(records, reasons, by)
    path = path or folder / REPORT_FILE
    try:
        with open(path, "w", encoding="utf-8", opener=None if out else private) as file:
            file.write(text)
    except OSError as error:
        raise WorkdirError(f"cannot write {path}: {error.strerror}; name another file with --out") from None
    return path


def _usable(runs: Mapping[str, Path]) -> tuple[list[Record], list[str]]:
    """Return the records of the runs that can be read and drawn, and for each other run the reason, which names it."""
    records, reasons = [], []
    for name, folder in runs.items():
        try:
            with refusing(folder):
                record = shown_record(folder, name)
                page([record])
        except WorkdirError as error:
            reasons.append(str(error))
        else:
            records.append(record)
    return records, reasons


def write_comparison(workdirs: list[str]) -> None:
    """Show the table of the runs by groups, and write the files that --csv and --svg name.

    Raises:
      WorkdirError, ConfigError: as `hybridsync.compare`; a run that cannot be read is left out, and named on stderr.
    """
    histories = []
    for folder in dict.fromkeys(workdirs):
        try:
            histories.append(read_run(folder))
        except WorkdirError as error:
            print(f"left out: {error}", file=sys.stderr)
    if not histories:
        raise WorkdirError(f"none of the {len(workdirs)} runs can be read; name one that can")
    table = compare(histories, by=FLAGS.group or "plan", at=FLAGS.at, figure=FLAGS.figure)
    print(table)
    if FLAGS.csv is not None:
        table.csv(FLAGS.csv)
        print(f"written: {FLAGS.csv}")
    if FLAGS.svg is not None:
        table.svg(FLAGS.svg, FLAGS.x)
        print(f"written: {FLAGS.svg}")


@ends_with_its_reader
@reports_errors
def main(argv: list[str]) -> int:
    """Write the page, or the files, of the runs that the command line names."""
    if len(argv) < 2:
        raise ConfigError("no run was named; write hybridsync report RUN [RUN2 ...] [--out=FILE]")
    compares = any(flag is not None for flag in (FLAGS.csv, FLAGS.svg, FLAGS.at))
    if compares:
        write_comparison(argv[1:])
    if not compares or FLAGS.out:
        print(f"written: {write_report(argv[1:], FLAGS.out, FLAGS.group or ())}")
    return EXIT_COMPLETED


if __name__ == "__main__":
    run(sys.modules[__name__])
