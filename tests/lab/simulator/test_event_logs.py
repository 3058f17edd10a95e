"""The comparison of event logs finds what differs, and maps renamed fields."""

from __future__ import annotations

from tests.lab.simulator import event_logs


def test_a_case_gives_the_same_log_twice_and_a_changed_line_is_found(tmp_path, capsys):
    for folder in ("old", "new"):
        assert event_logs.main(["record", str(tmp_path / folder), "--only=ssp-faults"]) == 0
    compare = ["compare", str(tmp_path / "old"), str(tmp_path / "new")]
    assert event_logs.main(compare) == 0
    log = tmp_path / "new" / "dssp-faults.jsonl"
    lines = log.read_text().splitlines()
    assert any('"kind":"role_lost"' in line for line in lines), "the case has no fault"
    lines[40] = lines[40].replace('"t":', '"t":1')
    log.write_text("\n".join(lines) + "\n")
    capsys.readouterr()
    assert event_logs.main(compare) == 1
    assert "line 41 of" in capsys.readouterr().out


def test_a_renamed_field_is_no_difference(tmp_path):
    for folder, key in (("old", "epoch"), ("new", "phase")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_text(f'{{"kind": "lease", "{key}": 3}}\n')
    folders = [str(tmp_path / "old"), str(tmp_path / "new")]
    assert event_logs.main(["compare", *folders]) == 1
    assert event_logs.main(["compare", *folders, "--rename", "epoch=phase"]) == 0


def test_a_log_that_is_missing_is_a_difference(tmp_path):
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
    assert event_logs.main(["compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 1
    (tmp_path / "old" / "a.jsonl").write_text('{"kind": "end"}\n')
    assert event_logs.main(["compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 1
