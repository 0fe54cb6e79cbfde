"""NFS and ports: exports, paths, routes, holders, running profiles."""

from __future__ import annotations

import pytest

from sparkserve.model.reading import Reading
from tests.checks.texts import about, command, failing, loud, what


def exports(text: str, node: str = "n1") -> Reading:
    return Reading(path="/etc/exports", text=text, node=node)


class TestExportable:
    @pytest.mark.parametrize(
        "reading",
        [
            command("stat -f -c %T /export", "tmpfs\n", "nfs"),
            command("docker exec nfs-server stat -f -c '%T' /exports", "overlayfs\n", "head"),
            command("findmnt -no FSTYPE -T /export", "overlay\n", "exporter"),
            what("exporter log", "exportfs: /models does not support NFS export\n", "exporter"),
            command("docker logs nfs", "exportfs: /export does not support NFS export\n", "head"),
        ],
    )
    def test_folder_of_an_overlay_cannot_be_exported(self, reading: Reading) -> None:
        found = failing("CTR_NFS_EXPORT_OVERLAY", reading)
        assert found
        assert all(one.verdict == "FAIL" for one in found)

    def test_overlay_that_nobody_exports_is_every_containers_root(self) -> None:
        assert loud(command("stat -f -c %T /", "overlayfs\n", "rank1")) == []

    @pytest.mark.parametrize("kind", ["ext2/ext3", "xfs", "btrfs"])
    def test_real_disks_pass(self, kind: str) -> None:
        assert loud(command("stat -f -c %T /export", f"{kind}\n", "exporter")) == []


class TestPath:
    LINE = "docker volume inspect -f '{{json .Options}}' w"
    OPTIONS = '{"device":":/old","o":"addr=10.9.0.1,ro,nfsvers=4.2","type":"nfs"}'

    @pytest.mark.parametrize(
        ("line", "text"),
        [
            (LINE, OPTIONS),
            ("docker volume inspect w", f'[{{"Name":"w","Options":{OPTIONS}}}]'),
        ],
    )
    @pytest.mark.parametrize(
        "offered",
        [
            exports("/srv/models 10.9.0.0/24(ro,fsid=0,root_squash)\n"),
            command("exportfs -v", "/srv/models  \t10.9.0.0/24(sync,hide,fsid=0,ro)\n", "n1"),
            command("exportfs -v", "/srv/models\n\t\t10.9.0.0/24(sync,hide,fsid=0,ro)\n", "n1"),
        ],
    )
    def test_folder_below_the_export_root_that_is_not_there_fails(
        self, line: str, text: str, offered: Reading
    ) -> None:
        listed = command("ls /srv/models", "config.json\nm-1.safetensors\n", "n1")
        (found,) = failing("STO_NFS_PATH_DRIFT", command(line, text, "n3"), offered, listed)
        assert (found.node, found.verdict) == ("n3", "FAIL")
        assert ":/old, which does not exist under the export root /srv/models" in found.observed

    @pytest.mark.parametrize("device", [":/", ":/old"])
    def test_export_root_and_folders_that_are_there_pass(self, device: str) -> None:
        volume = command(self.LINE, self.OPTIONS.replace(":/old", device), "n3")
        listed = command("ls /srv/models", "config.json\nold\n", "n1")
        offered = exports("/srv/models 10.9.0.0/24(ro,fsid=0,root_squash)\n")
        assert loud(volume, offered, listed) == []

    def test_path_outside_of_all_exports_fails_without_a_root(self) -> None:
        volume = command(self.LINE, self.OPTIONS, "n3")
        (found,) = failing("STO_NFS_PATH_DRIFT", volume, exports("/srv/m 10.9.0.0/24(ro)\n"))
        assert "below no exported folder" in found.observed


class TestRoute:
    ADDRESSES = (
        "3: enP7s7    inet 192.168.1.3/24 scope global enP7s7\n"
        "5: enp1s0f0np0    inet 172.20.23.3/24 scope global enp1s0f0np0\n"
        "6: enp1s0f1np1    inet 172.20.13.3/24 scope global enp1s0f1np1\n"
    )

    @pytest.mark.parametrize(
        "value",
        [
            what("profile value", "172.20.12.1\n", note="NFS server for node3"),
            what("profile value", "nfs_server = 172.20.12.1\n", "node3"),
            what("profile", "nfs:\n  server: 172.20.12.1\n", format="yaml"),
            command("docker volume inspect -f '{{json .Options}}' w",
                    '{"device":":/","o":"addr=172.20.12.1,ro","type":"nfs"}', "node3"),
        ],
    )  # fmt: skip
    def test_server_on_a_network_of_others_is_replaced(self, value: Reading) -> None:
        (found,) = failing(
            "STO_NFS_SERVER_UNREACHABLE", command("ip -o -4 addr", self.ADDRESSES, "node3"), value
        )
        assert (found.node, found.verdict) == ("node3", "FAIL")
        assert "172.20.12.0/24" in found.observed
        assert found.fix == "use 172.20.13.1"

    def test_servers_own_addresses_decide_where_they_are_known(self) -> None:
        theirs = "5: enp1s0f0np0    inet 172.20.12.1/24\n6: enp1s0f1np1    inet 172.20.23.9/24\n"
        (found,) = failing(
            "STO_NFS_SERVER_UNREACHABLE",
            command("ip -o -4 addr", self.ADDRESSES, "node3"),
            command("ip -o -4 addr", theirs, "node1"),
            what("profile value", "172.20.12.1\n", note="NFS server for node3"),
        )
        assert found.fix == "use 172.20.23.9"

    def test_server_on_a_shared_network_passes(self) -> None:
        value = what("profile value", "172.20.13.1\n", note="NFS server for node3")
        assert loud(command("ip -o -4 addr", self.ADDRESSES, "node3"), value) == []


class TestRights:
    @pytest.mark.parametrize(
        ("reading", "words"),
        [
            (exports("/m 10.0.0.0/8(rw,no_root_squash)\n"), "no_root_squash"),
            (exports("# all\n/m *(ro,fsid=0)\n"), "world export"),
            (command("exportfs -v", "/m  \t<world>(sync,ro,root_squash)\n", "n1"), "world export"),
            (command("showmount -e", "Export list for n1:\n/m *\n", "n1"), "world export"),
        ],
    )
    def test_export_that_gives_away_too_much_fails(self, reading: Reading, words: str) -> None:
        (found,) = failing("STO_ROOT_SQUASH_MODES", reading)
        assert (found.node, found.verdict) == ("n1", "FAIL")
        assert words in found.observed

    @pytest.mark.parametrize(
        ("line", "text", "words"),
        [
            ("find /m -printf '%m %p\\n'", "755 /m\n600 /m/token\n", "token inside"),
            ("ls -la /m", "-rw------- 1 u u 37 Sep 1 10:00 token\n", "token inside"),
            ("stat -c '%a %n' /m/*", "600 /m/a.safetensors\n", "clients may not read"),
            ("find /m ! -perm -o=r -print", "/m/a.safetensors\n", "clients may not read"),
        ],
    )
    def test_files_below_the_export_are_looked_at(self, line: str, text: str, words: str) -> None:
        offered = exports("/m 10.0.0.0/8(ro,root_squash)\n")
        (found,) = failing("STO_ROOT_SQUASH_MODES", offered, command(line, text, "n1"))
        assert words in found.observed

    def test_closed_export_of_readable_files_passes(self) -> None:
        offered = exports("/m 10.0.0.0/8(ro,root_squash)\n")
        assert loud(offered, command("find /m -printf '%m %p\\n'", "644 /m/a\n", "n1")) == []


class TestServer:
    LINE = "timeout 3 rpcinfo -t 127.0.0.1 nfs 4"

    def test_server_that_does_not_answer_warns(self) -> None:
        text = "rpcinfo: RPC: Program not registered\nprogram 100003 is not available\n"
        (found,) = failing("STO_NFS_NOT_RUNNING", command(self.LINE, text, "head", rc=1))
        assert (found.node, found.verdict) == ("head", "WARN")

    def test_server_that_answers_passes(self) -> None:
        text = "program 100003 version 4 ready and waiting\n"
        assert loud(command(self.LINE, text, "head")) == []


class TestPorts:
    @pytest.mark.parametrize(
        ("line", "text"),
        [
            ("ss -ltnp", "State  Recv-Q Send-Q Local Address:Port  Peer Address:PortProcess\n"
             'LISTEN 0 2048 0.0.0.0:8888 0.0.0.0:* users:(("python3",pid=4121,fd=3))\n'),
            ("ss -tlnp | grep 8888",
             'LISTEN 0      2048   *:8888   *:*    users:(("python3",pid=4121,fd=27))\n'),
            ("netstat -ltnp", "Proto Recv-Q Send-Q Local Address Foreign Address State PID\n"
             "tcp6       0      0 :::8888      :::*        LISTEN      4121/python3\n"),
            ("sudo lsof -iTCP:8888 -sTCP:LISTEN -P -n", "COMMAND  PID USER   FD   TYPE DEVICE "
             "SIZE/OFF NODE NAME\npython3 4121 root   27u  IPv4 1   0t0  TCP *:8888 (LISTEN)\n"),
            ("fuser 8888/tcp", "8888/tcp:             4121\n"),
        ],
    )  # fmt: skip
    def test_holder_of_a_port_is_named(self, line: str, text: str) -> None:
        (found,) = failing("ENG_PORT_BUSY", command(line, text, "h"))
        assert (found.node, found.verdict) == ("h", "FAIL")
        assert "8888 held by pid 4121" in found.observed
        assert "4121" in found.fix

    def test_port_that_was_asked_for_or_wished_counts_too(self) -> None:
        text = 'LISTEN 0 9 [::]:30000 [::]:* users:(("vllm",pid=7,fd=3))\n'
        assert failing("ENG_PORT_BUSY", command("ss -ltnpH 'sport = :30000'", text, "h"))
        listed = command("ss -ltnpH", text, "h")
        assert failing("ENG_PORT_BUSY", listed) == []
        wish = what("profile", "serving:\n  port: 30000\n", format="yaml")
        assert failing("ENG_PORT_BUSY", listed, wish)

    def test_holder_that_is_not_shown_is_not_invented(self) -> None:
        text = "LISTEN 0 128 127.0.0.1:8888 0.0.0.0:*\n"
        (found,) = failing("ENG_PORT_BUSY", command("ss -ltn", text, "h"))
        assert "pid" not in found.observed
        assert "sudo ss" in found.fix

    def test_other_ports_pass(self) -> None:
        text = 'LISTEN 0 128 0.0.0.0:22 0.0.0.0:* users:(("sshd",pid=1,fd=3))\n'
        (found,) = about("ENG_PORT_BUSY", command("ss -ltnpH", text, "h"))
        assert found.outcome == "pass"


class TestRunningProfile:
    @pytest.mark.parametrize(
        "running",
        [
            what("running container label", "sparkserve.profile_sha256=aaaa1111\n"),
            command("docker inspect -f '{{json .Config.Labels}}' rank0",
                    '{"sparkserve.profile_sha256":"aaaa1111","maintainer":"x"}'),
            command("docker inspect -f '{{index .Config.Labels \"sparkserve.profile_sha256\"}}' r",
                    "aaaa1111\n"),
        ],
    )  # fmt: skip
    def test_other_digest_than_the_one_on_disk_fails(self, running: Reading) -> None:
        (found,) = failing(
            "ENG_CONFIG_REVERTED", running, what("sha256 of profile on disk", "bbbb2222  x.toml\n")
        )
        assert found.verdict == "FAIL"
        assert "the running config is not the profile" in found.observed
        assert loud(running, what("sha256 of profile on disk", "aaaa1111ffff\n")) == []

    def test_arguments_that_differ_from_the_rendered_ones_are_listed(self) -> None:
        args = '[{"Name":"/r0","Args":["--tp-size","4","--chunked-prefill-size","2048"]}]'
        running = command("docker inspect r0", args, "n1")
        rendered = what("rendered argv", "--tp-size 4 --chunked-prefill-size 4096\n")
        (found,) = failing("ENG_CONFIG_REVERTED", running, rendered)
        assert "--chunked-prefill-size 2048, wanted 4096" in found.observed
        assert "tp-size" not in found.observed
        same = what("rendered argv", "--chunked-prefill-size 2048 --tp-size 4\n")
        assert failing("ENG_CONFIG_REVERTED", running, same) == []
