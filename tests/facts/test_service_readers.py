"""Services, identity, and a node's own record."""

from __future__ import annotations

import pytest

from sparkserve.facts.baseline import NodeBaseline, Seen, blocks_of, updated
from sparkserve.facts.kernel import HostVersions
from sparkserve.facts.parity import ParityItems
from sparkserve.facts.reader import Fact, understand
from sparkserve.facts.registry import READERS
from sparkserve.facts.services import HostIdentity, NfsServer, Service, Services, WifiState
from sparkserve.facts.unified import Buddyinfo, Meminfo, Zone
from sparkserve.model.facts import Unobserved
from sparkserve.model.reading import Reading


def one(text: str, **source: object) -> Fact | Unobserved:
    result = understand([Reading.model_validate({"text": text, **source})], READERS)
    assert result.unread == ()
    (observation,) = result.observations
    return observation.fact


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (
            "systemctl list-units --type=service --state=active --plain --no-legend",
            "cron.service loaded active running Cron\n"
            "earlyoom.service loaded active running Early OOM Daemon\n",
        ),
        (
            "systemctl list-units --type=service",
            "  UNIT             LOAD   ACTIVE SUB     DESCRIPTION\n"
            "  earlyoom.service loaded active running Early OOM Daemon\n"
            "● foo.service      loaded failed failed  Foo\n\n2 loaded units listed.\n",
        ),
        (
            "systemctl status earlyoom",
            "● earlyoom.service - Early OOM Daemon\n"
            "     Loaded: loaded (/usr/lib/systemd/system/earlyoom.service; enabled)\n"
            "     Active: active (running) since Mon\n",
        ),
        ("systemctl is-active docker earlyoom", "inactive\nactive\n"),
        ("ps aux | grep earlyoom", "root 8 /usr/bin/earlyoom -r 3600\nme 9 grep earlyoom\n"),
        ("pgrep -a oom", "812 /usr/bin/earlyoom -r 3600\n"),
    ],
)
def test_active_service_is_seen_in_every_list(command: str, text: str) -> None:
    fact = one(text, command=command)
    assert isinstance(fact, Services)
    assert Service(name="earlyoom", is_active=True) in fact.services


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("systemctl is-active earlyoom", "inactive\n"),
        ("systemctl is-active earlyoom", "unknown\n"),
        ("systemctl status earlyoom", "Unit earlyoom.service could not be found.\n"),
        (
            "systemctl status earlyoom",
            "○ earlyoom.service - Early OOM\n   Active: inactive (dead)\n",
        ),
        ("ps aux | grep earlyoom", "me 9 grep --color=auto earlyoom\n"),
        ("systemctl list-units --all", "earlyoom.service loaded inactive dead Early OOM\n"),
    ],
)
def test_service_that_does_not_run_is_not_active(command: str, text: str) -> None:
    fact = one(text, command=command)
    assert isinstance(fact, Services)
    assert not any(service.is_active for service in fact.services)


def test_number_of_words_must_fit_the_services_asked_for() -> None:
    fact = one("active\n", command="systemctl is-active earlyoom systemd-oomd")
    assert isinstance(fact, Unobserved)


def test_threads_of_the_file_server_are_a_number() -> None:
    assert one("8\n", path="/proc/fs/nfsd/threads") == NfsServer(threads=8)
    missing = one("cat: No such file\n", command="cat /proc/fs/nfsd/threads")
    assert isinstance(missing, Unobserved)


def test_identity_is_machine_id_and_host_keys() -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExample"
    fact = one(f"machine_id={'ab' * 16}\n{key} root@spark1\n", what="host identity")
    assert fact == HostIdentity(machine_id="ab" * 16, ssh_keys=(key,))
    assert one(f"{'cd' * 16}\n", path="/etc/machine-id") == HostIdentity(machine_id="cd" * 16)


def test_wifi_is_known_with_its_power_save() -> None:
    fact = one("interfaces= wlP9s9\nconnected= wlP9s9\npower_save=on\n", what="wifi state")
    assert fact == WifiState(interfaces=("wlP9s9",), connected=("wlP9s9",), power_save=True)


def test_parity_keeps_what_could_not_be_read_apart() -> None:
    fact = one("package.torch=2.9.0\nnccl.library=?\nparity.end=1\n", what="rank parity")
    assert fact == ParityItems(items={"package.torch": "2.9.0"}, unknown=("nccl.library",))
    assert one('{"image": "sha256:aa", "nccl": null}', what="parity items") == ParityItems(
        items={"image": "sha256:aa"}, unknown=("nccl",)
    )


NORMAL = (0,) * 13 + (500, 140)


def seen(
    blocks: tuple[int, ...] = NORMAL, *, boot: str = "b1", uptime_s: float = 600.0,
    available_gib: int = 118, canary_ms: float | None = None,
) -> Seen:  # fmt: skip
    return Seen(
        versions=HostVersions(kernel="6.17.0-1032-nvidia", boot_id=boot, uptime_s=uptime_s),
        memory=Meminfo(total_bytes=121 << 30, available_bytes=available_gib << 30),
        buddyinfo=Buddyinfo(zones=(Zone(node=0, name="Normal", blocks=blocks),)),
        canary_ms=canary_ms,
    )


class TestBlocks:
    def test_blocks_of_32_mib_are_counted_with_their_multiples(self) -> None:
        # order 13 of 4 KiB pages is 32 MiB, order 14 is 64 MiB: 500 + 2 x 140
        buddyinfo = Buddyinfo(zones=(Zone(node=0, name="Normal", blocks=NORMAL),))
        assert blocks_of(buddyinfo, 4096, 32 << 20) == 780

    def test_other_zones_do_not_count_and_nodes_are_added(self) -> None:
        zones = (
            Zone(node=0, name="DMA", blocks=(0,) * 13 + (103,)),
            Zone(node=0, name="Normal", blocks=(0,) * 13 + (3,)),
            Zone(node=1, name="Normal", blocks=(0,) * 13 + (4,)),
        )
        assert blocks_of(Buddyinfo(zones=zones), 4096, 32 << 20) == 7
        assert blocks_of(Buddyinfo(zones=zones[:1]), 4096, 32 << 20) is None

    def test_large_pages_move_the_order(self) -> None:
        # with 64 KiB pages 32 MiB is order 9
        buddyinfo = Buddyinfo(zones=(Zone(node=0, name="Normal", blocks=(0,) * 9 + (5, 1)),))
        assert blocks_of(buddyinfo, 65536, 32 << 20) == 7

    def test_kernel_without_such_blocks_is_unknown(self) -> None:
        buddyinfo = Buddyinfo(zones=(Zone(node=0, name="Normal", blocks=(0,) * 10 + (28000,)),))
        assert blocks_of(buddyinfo, 4096, 32 << 20) is None
        assert blocks_of(buddyinfo, 4096, 4 << 20) == 28000


class TestRecord:
    def test_look_soon_after_a_reboot_is_the_record(self) -> None:
        record = updated(None, seen(), became_ready=False)
        assert (record.large_blocks, record.is_post_reboot, record.boot_id) == (780, True, "b1")
        assert record.best_available_bytes == 118 << 30
        assert record.served_with is None

    def test_later_look_at_a_worse_node_changes_nothing(self) -> None:
        record = updated(None, seen(), became_ready=False)
        later = seen((0,) * 13 + (9,), uptime_s=90_000, available_gib=100)
        assert updated(record, later, became_ready=False) == record

    def test_next_reboot_replaces_the_count_even_by_a_smaller_one(self) -> None:
        record = updated(None, seen(), became_ready=False)
        again = updated(record, seen((0,) * 13 + (300,), boot="b2"), became_ready=False)
        assert (again.large_blocks, again.boot_id) == (300, "b2")

    def test_without_a_reboot_the_best_of_one_boot_stands(self) -> None:
        first = updated(None, seen((0,) * 13 + (300,), uptime_s=9e5), became_ready=False)
        assert first.is_post_reboot is False
        better = updated(first, seen((0,) * 13 + (400,), uptime_s=9.1e5), became_ready=False)
        worse = updated(better, seen((0,) * 13 + (2,), uptime_s=9.2e5), became_ready=False)
        assert (better.large_blocks, worse.large_blocks) == (400, 400)

    def test_node_in_use_leaves_only_its_versions(self) -> None:
        record = updated(None, seen(available_gib=12), became_ready=True)
        assert record == NodeBaseline(served_with={"kernel": "6.17.0-1032-nvidia"})

    def test_fastest_canary_is_kept(self) -> None:
        record = updated(None, seen(canary_ms=63.0), became_ready=False)
        assert updated(record, seen(canary_ms=94.0), became_ready=False).best_canary_ms == 63.0

    def test_record_survives_its_own_text(self) -> None:
        record = updated(None, seen(canary_ms=63.0), became_ready=True)
        assert one(record.model_dump_json(), what="node baseline", node="spark1") == record
