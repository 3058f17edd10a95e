"""The benchmark of lock-step over several devices: both of its loops run, and are stamped once a step."""

from __future__ import annotations

from benchmarks.joint_devices import WARM_STEPS, SteppedSource, measured

STEPS = WARM_STEPS + 4


def test_both_loops_are_stamped_once_a_step() -> None:
    rows = {row.name: row for row in measured("tiny", 1, STEPS, 1)}
    assert {name.removeprefix("tiny: ") for name in rows} == {
        *(
            f"{loop}, {what}"
            for loop in ("plain program", "xla")
            for what in ("a step", "processor time a step", "host time a step")
        ),
        "share of the plain program",
        "processor time added",
    }
    assert all(row.figure > 0 for name, row in rows.items() if "added" not in name)


def test_the_first_steps_do_not_count() -> None:
    source = SteppedSource(None, 2)
    source.stamps = [(float(second), second / 2, second / 4) for second in range(STEPS + 3)]
    assert source.take(STEPS).tolist() == [[1.0, 0.5, 0.25]] * (STEPS - 1 - WARM_STEPS)
    assert source.stamps == []
