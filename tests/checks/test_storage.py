"""Checkpoints, disks, exports, ports and running configurations, by every text that shows them."""

from __future__ import annotations

import json

import pytest

from sparkserve.model.reading import Reading
from tests.checks.texts import about, command, failing, loud, what

INDEX = json.dumps(
    {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-3.safetensors"}}
)


class TestIndex:
    @pytest.mark.parametrize(
        ("line", "text"),
        [
            ("ls", "config.json\nm-1.safetensors\nm-3.safetensors\n"),
            ("ls -C /m", "config.json  m-1.safetensors  m-3.safetensors\n"),
            ("ls -l /m", "total 9\n-rw-r--r-- 1 u u 5 Sep  1 10:00 config.json\n"
             "-rw-r--r-- 1 u u 50 Sep  1 10:00 m-1.safetensors\n"
             "-rw-r--r-- 1 u u 50 Sep  1  2025 m-3.safetensors\n"),
            ("LC_ALL=de_DE.UTF-8 ls -l /m", "insgesamt 9\n"
             "-rw-r--r-- 1 u u 50  1. Sep 10:00 m-1.safetensors\n"
             "-rw-r--r-- 1 u u 50  1. Sep 10:00 m-3.safetensors\n"),
            ("find /m -name '*.safetensors' -printf '%f %s\\n'",
             "m-1.safetensors 50\nm-3.safetensors 50\n"),
            ("find /m -type f", "/m/m-1.safetensors\n/m/m-3.safetensors\n"),
            ("du -b /m/*", "50\t/m/m-1.safetensors\n50\t/m/m-3.safetensors\n"),
        ],
    )  # fmt: skip
    def test_shard_that_a_list_lacks_is_named(self, line: str, text: str) -> None:
        (found,) = failing(
            "STO_MISSING_SHARD", what("model.safetensors.index.json", INDEX, "n1"),
            command(line, text, "n4"),
        )  # fmt: skip
        assert (found.node, found.verdict) == ("n4", "FAIL")
        assert "m-2.safetensors missing (1 of 3" in found.observed

    def test_empty_shard_is_no_shard(self) -> None:
        rows = "".join(f"-rw-r--r-- 1 u u {n} Sep 1 10:00 m-{n}.safetensors\n" for n in (1, 2, 3))
        listing = command("ls -l /m", rows.replace("u u 2 ", "u u 0 "), "n4")
        index = Reading(path="/m/model.safetensors.index.json", text=INDEX)
        (found,) = failing("STO_MISSING_SHARD", index, listing)
        assert "m-2.safetensors is empty" in found.observed
        assert loud(index, command("ls -l /m", rows, "n4")) == []

    def test_other_folders_are_not_taken_for_the_checkpoint(self) -> None:
        index = what("model.safetensors.index.json", INDEX)
        assert loud(index, command("ls /", "bin\netc\nhome\n", "n4")) == []


class TestDownload:
    @pytest.mark.parametrize(
        ("line", "text", "words"),
        [
            ("find -L snapshots/ab -type l", "snapshots/ab/m-1.safetensors\n", "1 broken link"),
            ("find . -xtype l", "./m-1.safetensors\n./m-2.safetensors\n", "2 broken links"),
            ("find blobs -name '*.incomplete' -printf '%f %s\\n'", "9f.incomplete 1073741824\n",
             "1 partial blob: 9f.incomplete (1.0 GiB)"),
            ("find . -name '*.incomplete'", "./blobs/9f.incomplete\n", "1 partial blob"),
            ("ls -la blobs | grep incomplete",
             "-rw-r--r-- 1 u u 1073741824 Sep 1 10:00 9f.incomplete\n", "1 partial blob"),
        ],
    )  # fmt: skip
    def test_unfinished_download_is_counted_and_named(
        self, line: str, text: str, words: str
    ) -> None:
        (found,) = failing("STO_CACHE_LOOKS_COMPLETE", command(line, text, "n2"))
        assert (found.node, found.verdict) == ("n2", "FAIL")
        assert words in found.observed

    def test_search_that_finds_nothing_passes(self) -> None:
        assert loud(command("find -L snapshots -type l", "", "n2", rc=0)) == []

    def test_search_in_a_folder_that_is_not_there_is_no_pass(self) -> None:
        text = "find: 'snapshots': No such file or directory\n"
        (found,) = about("STO_CACHE_LOOKS_COMPLETE", command("find -L snapshots -type l", text))
        assert found.outcome == "unknown"


class TestCorruption:
    @pytest.mark.parametrize(
        "row",
        ["a.safetensors 1000 0", "a.safetensors 1000 993", "a.safetensors: 100 40 99",
         "a.safetensors 900000000000 100000001"],
    )  # fmt: skip
    def test_header_that_cannot_be_read_is_named(self, row: str) -> None:
        (found,) = failing("STO_CORRUPT_WIPES_MODEL", what("header probe", row, "n1"))
        assert "a.safetensors" in found.observed
        assert "header" in found.observed

    @pytest.mark.parametrize("row", ["a.safetensors 1000 992", "a.safetensors 1000 2 1000"])
    def test_header_within_its_file_passes(self, row: str) -> None:
        assert loud(what("header probe", row, "n1")) == []

    @pytest.mark.parametrize(
        ("line", "text"),
        [
            ("od -An -t u8 -N 8 a.safetensors", "                    0\n"),
            ("xxd -l 8 a.safetensors", "00000000: 0000 0000 0000 0000       ........\n"),
        ],
    )
    def test_first_bytes_are_read_as_tools_show_them(self, line: str, text: str) -> None:
        (found,) = failing("STO_CORRUPT_WIPES_MODEL", command(line, text, "n1"))
        assert "header length 0" in found.observed

    def test_little_endian_length_of_a_healthy_file_passes(self) -> None:
        text = "00000000: 4085 0000 0000 0000       @.......\n"
        assert loud(command("xxd -l 8 a.safetensors", text, "n1")) == []

    @pytest.mark.parametrize(
        ("line", "text"),
        [
            ("docker inspect -f '{{json .Mounts}}' r0",
             '[{"Type":"bind","Source":"/srv/m","Destination":"/models","RW":true}]'),
            ("docker inspect -f '{{range .Mounts}}{{.Source}} {{.Destination}} {{.RW}}"
             "{{println}}{{end}}' r0", "/srv/m /model true\n"),
            ("docker inspect r0", '[{"Args":["--model-path","/w/x"],"Mounts":[{"Source":"/srv/m",'
             '"Destination":"/w","RW":true}]}]'),
        ],
    )  # fmt: skip
    def test_model_that_the_engine_may_write_fails(self, line: str, text: str) -> None:
        (found,) = failing("STO_CORRUPT_WIPES_MODEL", command(line, text, "n1"))
        assert "writable" in found.observed
        assert found.fix.endswith(":ro")
        assert loud(command(line, text.replace("true", "false"), "n1")) == []

    def test_writable_cache_is_no_writable_model(self) -> None:
        text = '[{"Type":"bind","Source":"/d","Destination":"/cache/huggingface","RW":true}]'
        assert loud(command("docker inspect -f '{{json .Mounts}}' r0", text, "n1")) == []


class TestDisks:
    WISH = what("profile", "engram_dir: /opt/engram\ntp: 4\n", format="yaml")

    @pytest.mark.parametrize(
        ("line", "text"),
        [
            ("df -h", "Filesystem      Size  Used Avail Use% Mounted on\n"
             "/dev/nvme0n1p2   98G   70G   24G  75% /\n"
             "/dev/nvme1n1p1  3.6T  100G  3.5T   3% /data\n"),
            ("df -B1 --output=target,avail /opt/engram /data",
             "Mounted on         Avail\n/            25769803776\n/data      3848290697216\n"),
            ("df -hT", "Dateisystem    Typ   Größe Benutzt Verf. Verw% Eingehängt auf\n"
             "/dev/nvme0n1p2 ext4    98G     70G   24G   75% /\n"
             "/dev/nvme1n1p1 ext4   3,6T    100G  3,5T    3% /data\n"),
            ("df -Pk", "Filesystem 1024-blocks Used Available Capacity Mounted on\n"
             "/dev/nvme0n1p2 102687672 70000000 25165824 75% /\n"
             "/dev/nvme1n1p1 3865470566 100000000 3758096384 3% /data\n"),
        ],
    )  # fmt: skip
    def test_rows_on_the_small_disk_are_sent_to_the_large_one(self, line: str, text: str) -> None:
        (found,) = failing("STO_DISK_WRONG_FS", command(line, text, "n2"), self.WISH)
        assert (found.node, found.verdict) == ("n2", "FAIL")
        assert "is on / with 24.0 GiB free, not on /data with 3.5 TiB" in found.observed
        assert "/data" in found.fix

    @pytest.mark.parametrize(
        ("tp", "free_gib", "fails"), [(4, 49, True), (4, 51, False), (3, 65, True), (8, 27, False)]
    )
    def test_room_is_what_one_ranks_rows_need(self, tp: int, free_gib: int, fails: bool) -> None:
        text = f"Avail\n{free_gib}G\n"
        wish = what("profile", f"engram_dir: /opt/engram\ntp: {tp}\n", format="yaml")
        reading = command("df -BG --output=avail /opt/engram", text, "n2")
        assert bool(failing("STO_DISK_WRONG_FS", reading, wish)) is fails

    @pytest.mark.parametrize(
        "mounted",
        [
            command("findmnt -T /raid", "TARGET SOURCE         FSTYPE OPTIONS\n"
                    "/      /dev/nvme0n1p2 ext4   rw,relatime\n", "n3"),
            command("findmnt --json -T /raid", '{"filesystems":[{"target":"/","source":'
                    '"/dev/nvme0n1p2","fstype":"ext4"}]}', "n3"),
            command("df /raid", "Filesystem     1K-blocks     Used Available Use% Mounted on\n"
                    "/dev/nvme0n1p2 959786032 12345678 898123456   2% /\n", "n3"),
            command("mountpoint /raid", "/raid is not a mountpoint\n", "n3", rc=32),
        ],
    )  # fmt: skip
    def test_copy_that_would_land_on_the_root_disk_fails(self, mounted: Reading) -> None:
        text = 'rsync: [Receiver] mkdir "/raid/hf/hub" failed: No such file or directory (2)\n'
        copy = command("rsync -a x n3:/raid/hf/hub", text, stream="stderr", rc=11)
        (found,) = failing("SSH_RSYNC_PARENT_MISSING", copy, mounted)
        assert (found.node, found.verdict) == ("n3", "FAIL")
        assert "/raid is not a mount point on n3" in found.observed
        assert "would land on /" in found.observed

    def test_missing_parent_on_a_mounted_disk_is_told_as_such(self) -> None:
        text = 'rsync: mkdir "/raid/hf" failed: No such file or directory (2)\n'
        mounted = command("findmnt -no TARGET,SOURCE -T /raid", "/raid /dev/md0\n", "n3")
        (found,) = failing("SSH_RSYNC_PARENT_MISSING", what("rsync", text), mounted)
        assert "not a mount point" not in found.observed

    @pytest.mark.parametrize(
        ("kind", "fails"),
        [("nfs4", True), ("fuse.sshfs", True), ("tmpfs", True), ("ext4", False), ("xfs", False)],
    )
    def test_rows_must_lie_on_a_local_disk(self, kind: str, fails: bool) -> None:
        text = f"/dev/root / ext4 rw 0 0\nsrc /opt/engram {kind} rw,relatime 0 0\n"
        mounts = Reading(path="/proc/self/mounts", text=text, node="n1")
        assert bool(failing("STO_NOT_LOCAL", mounts, self.WISH)) is fails

    def test_slow_disk_warns_with_its_figure(self) -> None:
        slow = {"iops": 9000, "queue_depth": 64, "path": "/x", "device": "/sys/nvme0n1"}
        (found,) = failing("STO_SLOW_DISK", what("random reads", slow, "n1"))
        assert found.verdict == "WARN"
        assert "9000 random reads" in found.observed
        assert loud(what("random reads", {**slow, "iops": 112000}, "n1")) == []
        # One read at a time is another measurement: a GB10 makes 3,500 of them.
        assert loud(what("random reads", {**slow, "iops": 3500, "queue_depth": 1}, "n1")) == []


class TestCaches:
    MOUNTS = '[{"Type":"bind","Source":"/d","Destination":"/cache","RW":true}]'
    ALL = (
        "TRITON_CACHE_DIR=/cache/t\nTILELANG_CACHE_DIR=/cache/l\nB12X_COMPILE_CACHE_DIR=/cache/b\n"
    )

    def judge(self, variables: str) -> list[str]:
        readings = (
            command("docker inspect -f '{{json .Mounts}}' rank1", self.MOUNTS, "rank1"),
            what("container env", variables, "rank1", format="env"),
        )
        return [found.observed for found in failing("ENG_JIT_MIDSERVE", *readings)]

    def test_caches_on_mounts_pass(self) -> None:
        assert self.judge(self.ALL) == []

    def test_cache_inside_the_container_is_named(self) -> None:
        (observed,) = self.judge(self.ALL.replace("=/cache/t", "=/root/.triton"))
        assert observed == "TRITON_CACHE_DIR=/root/.triton is not on a mount"

    def test_folder_that_only_begins_like_a_mount_is_not_below_it(self) -> None:
        assert self.judge(self.ALL.replace("/cache/t", "/cache2/t"))

    def test_variable_that_is_missing_is_named(self) -> None:
        (observed,) = self.judge("TRITON_CACHE_DIR=/cache/t\n")
        assert "TILELANG_CACHE_DIR is unset" in observed
        assert "B12X" in observed


def test_file_that_differs_between_ranks_is_named_with_both_digests() -> None:
    line = "sha256sum /state/dspark_sps.json"
    one, other = "a" * 64, "b" * 64
    first = command(line, f"{one}  /state/dspark_sps.json\n", "n1")
    (found,) = failing(
        "STO_ARTIFACT_SKEW", first, command(line, f"{other}  /s/dspark_sps.json\n", "n2")
    )
    assert "n1 aaaaaaaaaaaa, n2 bbbbbbbbbbbb" in found.observed
    assert loud(first, command(line, f"{one}  /s/dspark_sps.json\n", "n2")) == []
    missing = "sha256sum: /state/dspark_sps.json: No such file or directory\n"
    assert failing("STO_ARTIFACT_SKEW", first, command(line, missing, "n2", rc=1))
