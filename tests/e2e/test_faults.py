"""Every fault ends in its own message and exit code, with nothing left running."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkserve.paths import config_dir
from tests.e2e.fleet import Fleet

pytestmark = pytest.mark.testbed


class TestBeforeAnythingStarts:
    def test_unreachable_node_is_named_and_nothing_is_written(self, fleet: Fleet) -> None:
        fleet.nodes[1].stop()
        ended = fleet.launch(3)
        assert ended.code == 3
        assert "spark2" in ended.error
        assert fleet.engine_processes() == {}
        absent = fleet.nodes[0].inside(["ls", "/home/spark/sparkserve"], check=False)
        assert absent.returncode != 0

    def test_every_bad_node_is_named_at_once(self, fleet: Fleet) -> None:
        fleet.nodes[0].stop()
        with fleet.nodes[2].reject_ssh():
            ended = fleet.launch(3)
        assert ended.code == 3
        assert "spark1" in ended.error
        assert "spark3" in ended.error

    def test_changed_host_key_is_refused_with_both_fingerprints(self, fleet: Fleet) -> None:
        with fleet.nodes[1].replace_host_key():
            ended = fleet.launch(2)
        assert ended.code == 3
        assert "spark2" in ended.error
        assert ended.error.count("SHA256:") == 2
        assert "cluster trust" in ended.error

    def test_unknown_host_key_is_refused_with_its_fingerprint(self, fleet: Fleet) -> None:
        (config_dir() / "known_hosts").write_text("")
        ended = fleet.launch(2)
        assert ended.code == 3
        assert "SHA256:" in ended.error
        assert "cluster trust" in ended.error

    def test_refused_key_is_an_authentication_failure(self, fleet: Fleet) -> None:
        fleet.nodes[0].write("/home/spark/.ssh/authorized_keys", "")
        ended = fleet.launch(1)
        assert ended.code == 3
        assert "spark1" in ended.error

    def test_busy_port_names_port_node_and_key(self, fleet: Fleet) -> None:
        listener = (
            "import socket, time; s = socket.create_server(('0.0.0.0', 8888)); time.sleep(600)"
        )
        fleet.nodes[0].inside(
            ["sh", "-c", f'setsid python3 -c "{listener}" >/dev/null 2>&1 </dev/null &']
        )
        ended = fleet.launch(1)
        assert ended.code == 2
        assert "port 8888 (serving.port) is in use" in ended.error
        assert "spark1" in ended.error

    def test_too_little_memory_ends_with_5(self, fleet: Fleet) -> None:
        fleet.nodes[1].set_fact(mem_available_kib=10 * 1024 * 1024)
        ended = fleet.launch(2, limits={"start_memory_gib": 100})
        assert ended.code == 5
        assert "spark2: MemAvailable 10.0 GiB, expected at least 100.0 GiB" in ended.error

    def test_full_disk_ends_with_4_and_names_the_node(self, fleet: Fleet) -> None:
        with fleet.nodes[1].fill("/home/spark", leave_kib=1024):
            ended = fleet.launch(2)
        assert ended.code == 4
        assert "spark2" in ended.error
        assert fleet.engine_processes() == {}

    def test_disk_that_fills_while_specs_are_written_stops_the_launch(self, fleet: Fleet) -> None:
        # The root has room, the folder the specs go to has none: the check cannot know.
        node = fleet.nodes[1]
        node.inside(
            ["sh", "-c",
             "mkdir -p /home/spark/sparkserve /mnt/nvme/state && chmod 777 /mnt/nvme/state && "
             "ln -s /mnt/nvme/state /home/spark/sparkserve/state && "
             "chown -R spark:spark /home/spark/sparkserve"]
        )  # fmt: skip
        with node.fill("/mnt/nvme"):
            ended = fleet.launch(2)
        assert ended.code == 6
        assert "spark2" in ended.error
        assert "no space left" in ended.error.lower()
        assert fleet.engine_processes() == {}

    def test_missing_model_ends_with_4(self, fleet: Fleet) -> None:
        ended = fleet.launch(2, engine={"kind": "sglang", "extra_args": []})
        assert ended.code == 4
        assert "no directory /home/spark/sparkserve/checkpoints/none" in ended.error

    def test_truncated_shard_shows_both_sizes(self, fleet: Fleet) -> None:
        header = json.dumps({"w": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}})
        size = len(header).to_bytes(8, "little")
        for node in fleet.nodes[:2]:
            node.inside(["mkdir", "-p", "/home/spark/sparkserve/checkpoints/none"])
            node.write("/home/spark/sparkserve/checkpoints/none/config.json", "{}")
            node.inside(
                ["sh", "-c", "cat > /home/spark/sparkserve/checkpoints/none/model.safetensors"],
                stdin=size.decode("latin-1") + header + "x" * 10,
            )
        ended = fleet.launch(2, engine={"kind": "sglang", "extra_args": []})
        assert ended.code == 4
        declared = 8 + len(header) + 64
        assert f"its header declares {declared}" in ended.error

    def test_missing_interpreter_ends_with_4(self, fleet: Fleet) -> None:
        ended = fleet.launch(1, engine={"python": "venv/bin/python"})
        assert ended.code == 4
        assert "/home/spark/sparkserve/venv/bin/python" in ended.error


class TestWhileStarting:
    @pytest.mark.parametrize("rank", [0, 1])
    def test_engine_that_crashes_at_import_is_named_with_its_lines(
        self, fleet: Fleet, rank: int
    ) -> None:
        ended = fleet.launch(3, f"crash-at-import@{rank}")
        assert ended.code == 6
        assert f"rank {rank} on spark{rank + 1}" in ended.error
        assert "Error" in ended.error
        fleet.wait_silent()

    def test_engine_that_crashes_while_loading_stops_the_others(self, fleet: Fleet) -> None:
        ended = fleet.launch(3, "crash-while-loading@2")
        assert ended.code == 6
        assert "rank 2 on spark3" in ended.error
        fleet.wait_silent()

    def test_refusing_plugin_is_told_with_its_reason(self, fleet: Fleet) -> None:
        ended = fleet.launch(2, "refuse-plugin@1")
        assert ended.code == 6
        assert "rank 1" in ended.error
        assert "refused" in ended.error
        fleet.wait_silent()

    def test_rank_that_was_told_something_else_is_named(self, fleet: Fleet) -> None:
        ended = fleet.launch(2, "wrong-report@1")
        assert ended.code == 6
        assert "rank 1 read another spec" in ended.error
        fleet.wait_silent()

    @pytest.mark.parametrize("fault", ["garbage-answer", "empty-answer"])
    def test_endpoint_that_answers_nonsense_is_not_ready(self, fleet: Fleet, fault: str) -> None:
        ended = fleet.launch(1, fault)
        assert ended.code == 6
        assert "rank 0 answered" in ended.error
        fleet.wait_silent()

    def test_wrong_answer_is_not_ready_and_both_are_shown(self, fleet: Fleet) -> None:
        ended = fleet.launch(1, gate={"expect": "Atlantis"})
        assert ended.code == 6
        assert "Paris" in ended.error
        assert "'Atlantis'" in ended.error
        fleet.wait_silent()

    @pytest.mark.parametrize(
        "fault", ["hang-while-loading@1", "hang-in-rendezvous@1", "no-report@1"]
    )
    def test_engine_that_stops_moving_is_given_up(self, fleet: Fleet, fault: str) -> None:
        ended = fleet.launch(2, fault, limits={"no_progress_s": 4})
        assert ended.code == 6
        assert "no rank logged or read anything" in ended.error
        fleet.wait_silent()

    def test_node_that_loses_power_ends_the_launch(self, fleet: Fleet) -> None:
        profile = fleet.profile(3, "slow-load=600")
        launch = fleet.start("launch", "--cluster", "fleet", "--profile", profile, "--json")
        for rank in range(3):
            launch.wait_event(kind="state", message="running", node=f"spark{rank + 1}")
        launch.wait_event(kind="phase", message="wait for the engine")
        fleet.nodes[1].power_off()
        ended = launch.finish()
        assert ended.code == 6
        assert "rank 1 on spark2" in ended.error
        fleet.wait_silent(fleet.nodes[0], fleet.nodes[2])

    def test_engine_that_ignores_sigterm_and_leaves_orphans_is_ended(self, fleet: Fleet) -> None:
        assert fleet.launch(2, "ignore-sigterm", "orphan").code == 0
        assert fleet.run("stop").code == 0
        assert fleet.engine_processes() == {}


class TestWhileServing:
    def test_stop_says_which_node_it_could_not_reach(self, fleet: Fleet) -> None:
        assert fleet.launch(3).code == 0
        fleet.nodes[2].stop()
        ended = fleet.run("stop")
        assert ended.code == 3
        assert "spark3" in ended.error + ended.stdout
        fleet.wait_silent(*fleet.nodes[:2])

    def test_foreign_process_that_looks_alike_survives_a_stop(self, fleet: Fleet) -> None:
        assert fleet.launch(1).code == 0
        node = fleet.nodes[0]
        node.inside(
            ["sh", "-c",
             "setsid python3 -c 'import time; time.sleep(600)' sparkserve.sim.light_engine "
             ">/dev/null 2>&1 </dev/null &"]
        )  # fmt: skip
        fleet.run("stop")
        assert any("time.sleep(600)" in process.command for process in node.processes())

    def test_key_is_needed_works_and_shows_nowhere(self, fleet: Fleet, tmp_path: Path) -> None:
        key = "sk-very-secret-0123456789"
        key_file = tmp_path / "key"
        key_file.touch(mode=0o600)
        key_file.write_text(key)
        launched = fleet.launch(2, serving={"api_key_file": str(key_file)})
        assert launched.code == 0, launched.error
        assert key not in launched.stdout + launched.stderr
        for commands in fleet.engine_processes().values():
            assert not any(key in command for command in commands)
        assert "Paris" in fleet.run("chat", "What is the capital of France?").stdout
        asked = fleet.nodes[0].inside(
            ["python3", "-c",
             "import urllib.request as u; u.urlopen('http://127.0.0.1:8888/v1/models')"],
            check=False,
        )  # fmt: skip
        assert "401" in asked.stderr
        readable = fleet.nodes[0].inside(
            ["sh", "-c", f"cd /home/spark/sparkserve && grep -rl {key} . | xargs stat -c '%a %n'"]
        )
        assert [line.split()[0] for line in readable.stdout.splitlines()] == ["600"]
        fleet.run("stop")

    def test_key_file_that_others_can_read_is_refused(self, fleet: Fleet, tmp_path: Path) -> None:
        key_file = tmp_path / "key"
        key_file.write_text("secret")
        key_file.chmod(0o644)
        ended = fleet.launch(1, serving={"api_key_file": str(key_file)})
        assert ended.code == 2
        assert "has mode 0644, expected 0600" in ended.error
