"""Run folders: ids, atomic records, lists that survive damage."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone

import pytest

from sparkserve import runs
from sparkserve.errors import BusyError, ConfigError
from sparkserve.model.cluster import Cluster, Node
from sparkserve.model.finding import Finding
from sparkserve.model.plan import Plan, PutFile, RunCommand, Stage, Step
from sparkserve.model.profile import Profile
from sparkserve.model.record import RunRecord

NOW = datetime(2026, 11, 30, 17, 35, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def record_of(run_id, *, cluster="four", outcome="serving"):
    profile = Profile(name="p", model={"path": "m", "served_name": "s"})
    return RunRecord(
        run_id=run_id,
        tool_version="0",
        created_at=NOW,
        updated_at=NOW,
        outcome=outcome,
        profile=profile,
        profile_digest=profile.digest,
        cluster=Cluster(name=cluster, nodes=(Node(name="a", host="a"),)),
    )


def make(run_id, **kwargs):
    run = runs.create(run_id)
    run.write_record(record_of(run_id, **kwargs))
    return run


def test_an_id_is_readable_and_holds_utc():
    local = NOW.astimezone(timezone(timedelta(hours=9)))
    assert re.fullmatch(
        r"20261130-173512-local-demo-[0-9a-f]{4}", runs.new_run_id(local, "Local Demo")
    )


@pytest.mark.parametrize("profile", ["", "///", "ü" * 40, "x" * 100, "a_b.c", "-a-"])
def test_an_id_of_any_profile_can_name_a_folder(profile):
    run = runs.create(runs.new_run_id(NOW, profile))
    assert run.path.is_dir()
    assert re.fullmatch(r"[a-z0-9-]{,45}", run.run_id)


def test_ids_sort_by_time():
    later = [runs.new_run_id(NOW + timedelta(seconds=n), "zyx"[n % 3]) for n in range(60)]
    assert later == sorted(later)


def test_two_runs_of_the_same_second_never_share_a_folder(monkeypatch):
    tokens = iter(["aaaa", "aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr("sparkserve.runs.store.secrets.token_hex", lambda _: next(tokens))
    first = runs.create_new(NOW, "p")
    second = runs.create_new(NOW, "p")
    assert (first.run_id[-4:], second.run_id[-4:]) == ("aaaa", "bbbb")
    with pytest.raises(BusyError, match="exists already"):
        runs.create(first.run_id)


def test_everything_reads_back_as_it_was_written():
    run = make("r1")
    step = Step(
        id="s",
        node="a",
        title="t",
        effect="reads",
        done_when="x",
        action=RunCommand(argv=("true",)),
    )
    plan = Plan(verb="launch", run_id="r1", stages=(Stage(title="one", steps=(step,)),))
    finding = Finding(
        code="C",
        check_id="X.Y",
        title="t",
        node=None,
        outcome="unknown",
        severity="warning",
        verdict="UNKNOWN",
    )
    run.write_plan(plan)
    run.write_findings([finding])
    run.write_facts({"a": {"memory": plan, "list": [finding, 1]}, "b": None})
    assert run.record() == runs.load("r1") == record_of("r1")
    assert run.plan() == plan
    assert run.findings() == (finding,)
    assert run.facts() == {
        "a": {
            "memory": plan.model_dump(mode="json"),
            "list": [finding.model_dump(mode="json"), 1],
        },
        "b": None,
    }


def test_secrets_of_a_plan_are_never_recorded():
    run = make("r1")

    def put(content, *, secret):
        return Step(
            id=content,
            node="a",
            title="t",
            effect="writes-node",
            done_when="x",
            action=PutFile(path="/x", content=content, secret=secret),
        )

    steps = (put("s3cret", secret=True), put("plain", secret=False))
    run.write_plan(Plan(verb="v", run_id="r1", stages=(Stage(title="x", steps=steps),)))
    text = (run.path / "plan.json").read_text()
    assert '"content": "plain"' in text
    assert '"content": "***"' in text
    assert not re.search(r'"content": "s3cret"', text)


def test_the_folder_is_its_owners_alone():
    run = make("r1")
    assert run.path.stat().st_mode & 0o077 == 0
    assert (run.path / "record.json").stat().st_mode & 0o077 == 0
    assert run.node_dir("spark1") == run.path / "node" / "spark1"
    with pytest.raises(ConfigError, match="node name"):
        run.node_dir("../x")


def test_a_failed_replacement_keeps_the_old_record(monkeypatch):
    import os

    run = make("r1")

    def full(descriptor, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ConfigError, match=r"record\.json: No space left"):
        run.write_record(record_of("r1", outcome="failed"))
    assert run.record().outcome == "serving"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is damaged"),
        ('{"run_id": "r1"', "is damaged"),
        ("[]", "is damaged"),
        ('{"schema_version": 2}', "is damaged: schema_version"),
        (None, "No such file"),
    ],
)
def test_a_corrupt_record_names_its_file_and_does_not_hide_others(content, reason):
    make("r0")
    run = make("r1")
    path = run.path / "record.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(ConfigError, match=r"run r1: .*record\.json.*") as caught:
        runs.load("r1")
    assert reason in caught.value.message
    good, bad = runs.list_runs()[1], runs.list_runs()[0]
    assert (good.run_id, good.record, good.problem) == ("r0", record_of("r0"), None)
    assert (bad.run_id, bad.record) == ("r1", None)
    assert bad.problem == caught.value.message
    assert runs.latest().run_id == "r0"


def test_the_list_is_newest_first_and_skips_what_is_no_run(state):
    for run_id in ("20260101-000000-a-0000", "20270101-000000-a-0000", "20260601-000000-a-0000"):
        make(run_id)
    (runs.runs_dir() / "notes.txt").write_text("x")
    (runs.runs_dir() / ".hidden").mkdir()
    assert [entry.run_id[:4] for entry in runs.list_runs()] == ["2027", "2026", "2026"]
    assert runs.list_runs()[1].run_id.startswith("202606")


def test_without_any_run_lists_are_empty():
    assert runs.list_runs() == []
    assert runs.latest() is None


def test_the_latest_can_be_asked_by_cluster_and_outcome():
    make("r1", cluster="four", outcome="serving")
    make("r2", cluster="two", outcome="serving")
    make("r3", cluster="four", outcome="failed")
    assert runs.latest().run_id == "r3"
    assert runs.latest(cluster="two").run_id == "r2"
    assert runs.latest(outcome="serving").run_id == "r2"
    assert runs.latest(cluster="four", outcome="serving").run_id == "r1"
    assert runs.latest(cluster="eight") is None


def test_a_unique_beginning_is_enough():
    make("20260101-000000-a-0000")
    make("20260102-000000-a-0000")
    assert runs.open_run("20260102").run_id == "20260102-000000-a-0000"
    with pytest.raises(ConfigError, match=r"not unique: 20260102-.*, 20260101-"):
        runs.open_run("202601")
    with pytest.raises(ConfigError, match="no run 'x'; the newest are: 20260102-"):
        runs.open_run("x")


def test_an_exact_id_wins_over_ids_that_begin_with_it():
    make("r1")
    make("r12")
    assert runs.open_run("r1").run_id == "r1"


@pytest.mark.parametrize("run_id", ["", "..", "../x", "/etc", "a/b", ".x"])
def test_an_id_cannot_leave_the_folder(run_id):
    for use in (runs.create, runs.open_run, runs.load):
        with pytest.raises(ConfigError, match="run id"):
            use(run_id)


def test_the_record_file_is_plain_json():
    run = make("r1")
    assert json.loads((run.path / "record.json").read_text())["run_id"] == "r1"
