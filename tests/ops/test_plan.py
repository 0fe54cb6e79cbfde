"""A plan by what nodes have now, and by what earlier runs on them said."""

from __future__ import annotations

import json
import subprocess
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sparkserve import runs
from sparkserve.errors import ConfigError, UnreachableError
from sparkserve.model.cluster import Cluster
from sparkserve.model.profile import Profile
from sparkserve.ops import plan
from sparkserve.ops.doors import Doors
from sparkserve.ops.plan import PlanRequest
from sparkserve.ops.target import Target
from sparkserve.runs import RunDirectory
from sparkserve.transport.host import GroupResult, Host, Result
from tests import scenes
from tests.ops.told import ToldHost
from tests.report import runs as samples

TP4 = Path(__file__).parent.parent / "planning" / "profiles" / "v41-tp4.toml"
SMALL = ("context.chunked_prefill_tokens=512",)
HOSTS = ("spark1", "spark2", "spark3", "spark4")
LOG = """\
Load weight begin. avail mem=115.00 GB
Load weight end. avail mem=33.00 GB
bytes_per_full_token=1670.75, available_bytes=9.90 GB, swa_fixed=0.34 GB, full_token=6143000
"""


@dataclass
class MemoryHost(ToldHost):
    """A node with a meminfo of its own; the script runs in a real shell."""

    meminfo: Path = Path("/nonexistent")
    closed: bool = False

    def script(self, text: str, *, timeout_s: float) -> Result:
        text = text.replace("/proc/meminfo", str(self.meminfo))
        done = subprocess.run(["sh"], input=text, capture_output=True, text=True, timeout=timeout_s)
        return Result(self.name, "", "exited", done.returncode, done.stdout, done.stderr, 0.1)

    def close(self) -> None:
        self.closed = True


def doors(*hosts: Host, lost: str | None = None) -> Doors:
    def connect(cluster: Cluster) -> GroupResult[Host]:
        errors = {lost: UnreachableError(lost, "no answer")} if lost else {}
        good = {host.name: host for host in hosts if host.name != lost}
        return GroupResult({n.name: good[n.name] for n in cluster.nodes if n.name in good}, errors)

    return Doors(connect=connect)


def nobody() -> Doors:
    def connect(cluster: Cluster) -> GroupResult[Host]:
        raise AssertionError(f"{cluster.name} was asked")

    return Doors(connect=connect)


def request(**changes: object) -> PlanRequest:
    values = {"target": Target(profile=str(TP4), hosts=HOSTS, settings=SMALL)}
    return PlanRequest(**(values | changes))  # type: ignore[arg-type]


def meminfo(folder: Path, name: str, available_gib: float) -> Path:
    path = folder / name
    kib = 1 << 20
    path.write_text(
        f"MemTotal:       {round(121.7 * kib)} kB\nMemFree:        1024 kB\n"
        f"MemAvailable:   {round(available_gib * kib)} kB\n"
    )
    return path


def recorded(hour: int, **settings: object) -> RunDirectory:
    """A run of the profile, or of one that differs in some sections."""
    values = tomllib.loads(TP4.read_text()) | {"name": "v41-tp4"} | settings
    profile = Profile.model_validate(values)
    directory = runs.create_new(datetime(2026, 11, 30, hour, tzinfo=UTC), "v41")
    record = samples.record(4, run_id=directory.run_id, profile=profile, cluster=scenes.cluster(4))
    directory.write_record(record)
    return directory


def test_no_node_is_asked_without_live() -> None:
    result = plan.run(request(), nobody())
    assert result.plan.fits
    assert result.exit_code == 0
    assert {rank.source for rank in result.plan.ranks} == {"assumed: a headless Spark after a boot"}


def test_live_reads_every_node_and_names_the_one_that_is_short(tmp_path: Path) -> None:
    hosts = [
        MemoryHost(name, meminfo=meminfo(tmp_path, name, 112.0 if name == "spark3" else 118.0))
        for name in HOSTS
    ]
    result = plan.run(request(live=True), doors(*hosts))
    assert [round(rank.available_gib, 2) for rank in result.plan.ranks] == [118, 118, 112, 118]
    assert result.exit_code == 5
    assert [verdict.node for verdict in result.plan.verdicts] == ["spark3"]
    assert all(host.closed for host in hosts)


def test_a_node_that_cannot_be_read_is_no_plan(tmp_path: Path) -> None:
    good = [MemoryHost(name, meminfo=meminfo(tmp_path, name, 118.0)) for name in HOSTS]
    with pytest.raises(UnreachableError, match="spark2"):
        plan.run(request(live=True), doors(*good, lost="spark2"))
    good[1].meminfo = tmp_path / "gone"
    with pytest.raises(ConfigError, match="spark2: memory was not observed"):
        plan.run(request(live=True), doors(*good))


def test_the_newest_run_of_the_same_model_and_ranks_teaches() -> None:
    old = recorded(1)
    (old.node_dir("spark2") / "engine.log").write_text(LOG)
    silent = recorded(2)
    (silent.node_dir("spark1") / "engine.log").write_text("nothing about memory\n")
    other = recorded(3, parallel={"tp": 4, "ep": 2})
    (other.node_dir("spark1") / "engine.log").write_text(LOG.replace("33.00", "20.00"))
    result = plan.run(request(), nobody())
    assert result.learned is not None
    assert result.learned.run == old.run_id
    assert list(result.learned.ranks) == ["spark2"]
    assert result.plan.ranks[0].loaded_gib == pytest.approx(82.0)
    assert plan.run(request(learn=False), nobody()).learned is None


def test_lines_among_the_events_of_a_run_teach_too() -> None:
    directory = recorded(1)
    events = [{"kind": "log", "node": "spark4", "message": line} for line in LOG.splitlines()]
    directory.events_path.write_text("".join(f"{json.dumps(one)}\n" for one in events) + "{broken")
    learned = plan.run(request(), nobody()).learned
    assert learned is not None
    assert learned.loaded_gib == pytest.approx(82.0)
    assert learned.pool_tokens == 6_143_000


def test_without_a_cluster_as_many_sparks_are_made_up_as_the_profile_wants() -> None:
    result = plan.run(PlanRequest(Target(profile=str(TP4), settings=SMALL)), nobody())
    assert [rank.node for rank in result.plan.ranks] == list(HOSTS)
    assert result.resolved.reasons == ("4 Sparks: no cluster is named",)


def test_settings_that_cannot_work_are_exit_2() -> None:
    wrong = Target(profile=str(TP4), settings=(*SMALL, "parallel.tp=3"))
    result = plan.run(PlanRequest(wrong), nobody())
    assert result.exit_code == 2
    assert "ENG_TP_DIVISIBILITY" in {f.code for f in result.findings if f.outcome == "fail"}
