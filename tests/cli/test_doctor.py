"""``sparkserve doctor`` as people and programs see it, on texts alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Run

CASES = Path(__file__).parent.parent / "cases"
KEYS = {
    "code", "check_id", "node", "outcome", "severity", "verdict", "observed", "expected", "why",
    "fix", "evidence",
}  # fmt: skip
MEMINFO = "MemTotal:       127542608 kB\nCmaTotal: 983040 kB\nCmaFree: 9961472 kB\n"


def case(number: str) -> Path:
    (folder,) = CASES.glob(f"{number}-*")
    return folder


def copy(number: str, folder: Path) -> Path:
    """A case under a neutral name, without anything but its tables and texts."""
    shutil.copytree(case(number), folder)
    lines = (folder / "case.toml").read_text().partition("[[input]]")
    (folder / "case.toml").write_text(lines[1] + lines[2])
    return folder


def test_replay_hands_findings_and_unread_to_programs(run: Run) -> None:
    outcome = run("doctor", "--replay", str(case("B01")), "--json")
    assert outcome.code == 4
    assert outcome.data["unread"] == []
    failed = [f for f in outcome.data["findings"] if f["outcome"] == "fail"]
    assert all(set(finding) >= KEYS for finding in outcome.data["findings"])
    assert [(f["code"], f["node"], f["verdict"]) for f in failed] == [
        ("NET_GID_PER_NODE", "node2", "FAIL")
    ]


def test_replay_looks_at_nothing_but_the_tables(run: Run, tmp_path: Path) -> None:
    bare = run("doctor", "--replay", str(copy("B01", tmp_path / "x")), "--json")
    whole = run("doctor", "--replay", str(case("B01")), "--json")
    assert bare.data["findings"] == whole.data["findings"]


def test_findings_for_people(run: Run) -> None:
    outcome = run("doctor", "--replay", str(case("B01"))).golden("doctor-replay-80")
    assert outcome.code == 4
    wide = run("doctor", "--replay", str(case("B01")), "-v", columns=160)
    assert wide.golden("doctor-replay-160").code == 4


def test_quiet_is_a_line_for_each_fault(run: Run) -> None:
    outcome = run("doctor", "--replay", str(case("B01")), "--quiet")
    assert outcome.out == "FAIL node2 NET_GID_PER_NODE\n"


def test_healthy_texts_end_well(run: Run) -> None:
    outcome = run("doctor", "--replay", str(CASES / "baseline"))
    assert outcome.code == 0
    assert "FAIL" not in outcome.out
    assert "WARN" not in outcome.out


@pytest.mark.parametrize(
    ("kind", "as_what"),
    [
        ("/proc/meminfo", "path"),
        ("cat /proc/meminfo", "command"),
    ],
)
def test_one_pasted_text_is_judged(run: Run, tmp_path: Path, kind: str, as_what: str) -> None:
    (tmp_path / "paste.txt").write_text(MEMINFO)
    outcome = run(
        "doctor", "--replay", str(tmp_path / "paste.txt"), "--as", kind, "--node", "spark3",
        "--json",
    )  # fmt: skip
    failed = [f for f in outcome.data["findings"] if f["verdict"] == "FAIL"]
    assert [(f["code"], f["node"]) for f in failed] == [("MEM_KHO_CMA", "spark3")], as_what
    assert outcome.code == 5


def test_a_text_from_stdin_is_judged(run: Run) -> None:
    outcome = run("doctor", "--replay", "-", "--as", "/proc/meminfo", "-q", typed=MEMINFO)
    assert "FAIL cluster MEM_KHO_CMA" in outcome.out


def test_a_folder_of_plain_files_is_read_by_their_names(run: Run, tmp_path: Path) -> None:
    (tmp_path / "spark2").mkdir()
    (tmp_path / "spark2/meminfo.txt").write_text(MEMINFO)
    (tmp_path / "spark3-meminfo").write_text(MEMINFO)
    (tmp_path / "holiday.txt").write_text(MEMINFO)
    outcome = run("doctor", "--replay", str(tmp_path), "--json")
    failed = [f["node"] for f in outcome.data["findings"] if f["code"] == "MEM_KHO_CMA"]
    assert sorted(failed) == ["spark2", "spark3"]
    (unread,) = outcome.data["unread"]
    assert unread["label"] == "holiday.txt"
    assert "say what it is with --as" in unread["reason"]


def test_nothing_judged_is_not_well(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("all is well")
    outcome = run("doctor", "--replay", str(tmp_path / "notes.txt"), "--as", "my notes")
    assert outcome.code == 1
    assert "my notes: no reader knows this kind of text" in outcome.out
    assert "checks: none" in outcome.out


def test_checks_can_be_listed(run: Run) -> None:
    outcome = run("doctor", "--list-checks", "--json")
    rows = {row["id"]: row for row in outcome.data["checks"]}
    assert outcome.code == 0
    assert rows["RING.MTU"]["code"] == "NET_ACTIVE_MTU_LOW"
    assert rows["RING.MTU"]["theme"] == "fabric"
    assert run("doctor", "--list-checks", "--only", "RING.MTU", "-q").out.split() == [
        "SSH.REACHABLE", "RING.MTU",
    ]  # fmt: skip
    people = run("doctor", "--list-checks", "--stage", "launch").out
    assert max(len(line) for line in people.splitlines()) <= 80


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--replay", "nowhere"), "cannot read nowhere: no such file or folder"),
        (("--as", "engine log"), "expected --replay FILE with them"),
        (("--replay", ".", "--save", "x"), "--save and --replay contradict each other"),
        (("--fix", "mtu", "--replay", "."), "--fix and --replay contradict each other"),
        (("--fix", "mtu", "--undo"), "--fix and --undo contradict each other"),
        (("--replay", ".", "--bandwidth"), "--bandwidth and --replay contradict each other"),
        (("--replay", ".", "--undo"), "--undo and --replay contradict each other"),
        (("--undo", "--save", "x"), "--save and --undo contradict each other"),
        (("--replay", ".", "--profile", "x"), "--replay judges texts alone"),
        (("--replay", ".", "--hosts", "a,b"), "--replay judges texts alone"),
        (("--size", "1M"), "--size belongs to --bandwidth"),
        (("--collective",), "--collective belongs to --bandwidth"),
        (("--fix", ""), "no mend ''"),
        (("--dry-run",), "--dry-run belongs to --fix"),
        (("--fix", "everything"), "no mend 'everything'; there are: mtu"),
        (("--bandwidth", "--size", "huge"), "--size huge"),
        (("--only", "fabrics"), "no theme, check or code 'fabrics'; near it: fabric"),
        (("--stage", "boot"), "no stage 'boot'"),
    ],
)
def test_a_contradiction_is_named_before_anything_is_read(
    run: Run, args: tuple[str, ...], message: str
) -> None:
    outcome = run("doctor", *args)
    assert outcome.code == 2
    assert message in " ".join(outcome.err.split())


def test_a_file_needs_a_name_for_what_it_is(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("x")
    outcome = run("doctor", "--replay", str(tmp_path / "x.log"))
    assert outcome.code == 2
    assert "name the command, path or kind of text" in " ".join(outcome.err.split())


def test_a_broken_manifest_is_one_clear_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "case.toml").write_text("[[input]\n")
    outcome = run("doctor", "--replay", str(tmp_path), "--json")
    assert outcome.code == 2
    assert "not valid TOML" in outcome.data["error"]["message"]


def test_a_folder_without_a_file_is_an_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    os.mkfifo(tmp_path / "inner" / "meminfo")
    outcome = run("doctor", "--replay", str(tmp_path), "--json")
    assert outcome.code == 2
    assert "no file there" in outcome.data["error"]["message"]


def test_a_link_out_of_a_pasted_folder_is_not_followed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("MemTotal: 1 kB\n")
    (tmp_path / "pasted").mkdir()
    (tmp_path / "pasted" / "meminfo").symlink_to(tmp_path / "secret")
    outcome = run("doctor", "--replay", str(tmp_path / "pasted"), "--json")
    assert outcome.data["findings"] == []
    assert outcome.data["unread"][0]["reason"] == "meminfo lies outside the folder"
