"""Old runs go and logs stay bounded; nothing that lives or explains is lost."""

from __future__ import annotations

import json
import os
from pathlib import Path

from sparkserve.node.housekeeping import bound_log, prune_runs
from sparkserve.node.processes import read_process


def ended_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(
        json.dumps({"state": "stopped", "guard_pid": 1 << 22, "guard_start_ticks": 1})
    )
    return folder


def test_oldest_ended_runs_are_removed(tmp_path: Path) -> None:
    made = [ended_run(tmp_path / f"2026113{n}-x") for n in range(5)]
    assert prune_runs(made[4], kept=2) == made[:3]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["20261133-x", "20261134-x"]


def test_own_and_living_runs_stay_however_old(tmp_path: Path) -> None:
    own, living, old, new = (ended_run(tmp_path / name) for name in "abcd")
    me = read_process(os.getpid())
    assert me is not None
    (living / "state.json").write_text(
        json.dumps({"state": "running", "guard_pid": me.pid, "guard_start_ticks": me.start_ticks})
    )
    assert prune_runs(own, kept=1) == [old]
    assert sorted(tmp_path.iterdir()) == [own, living, new]


def test_folder_that_is_no_run_is_removed_like_one_and_a_damaged_state_does_no_harm(
    tmp_path: Path,
) -> None:
    own = ended_run(tmp_path / "z")
    for name, text in (("a", "{"), ("b", "[]"), ("c", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").write_text(text)
    assert len(prune_runs(own, kept=1)) == 3


def test_log_below_the_limit_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_bytes(b"x" * 100)
    assert not bound_log(path, limit_bytes=100)
    assert path.stat().st_size == 100
    assert not bound_log(tmp_path / "none", limit_bytes=100)


def test_log_past_the_limit_is_cut_and_its_writer_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    with path.open("ab") as writer:
        writer.write(b"old" * 50 + b"newest")
        writer.flush()
        assert bound_log(path, limit_bytes=6)
        writer.write(b"after")
        writer.flush()
    assert path.read_bytes() == b"after"
    assert (tmp_path / "engine.log.1").read_bytes() == b"newest"
    assert (tmp_path / "engine.log.1").stat().st_mode & 0o777 == 0o600
