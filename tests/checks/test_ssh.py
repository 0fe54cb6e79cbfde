"""Logins, sudo, paths and homes: each fault by every text that shows it, healthy ones quiet."""

from __future__ import annotations

import json

import pytest

from sparkserve.checks.ssh import survives_quoting
from sparkserve.model.reading import Reading
from tests.checks.texts import about, command, failing, loud, what

REFUSED = "u@10.0.0.9: Permission denied (publickey,keyboard-interactive).\n"
UNKNOWN = (
    "No ED25519 host key is known for 10.9.0.3 and you have requested strict checking.\n"
    "Host key verification failed.\n"
)
KNOWN = "# Host spark3 found: line 1 \nspark3 ssh-ed25519 AAAAC3Nza\n"
ENCRYPTED = 'Load key "/h/.ssh/k": incorrect passphrase supplied to decrypt private key\n'


class TestLogin:
    @pytest.mark.parametrize(
        "line",
        [
            "ssh -o BatchMode=yes -o ConnectTimeout=5 u@10.0.0.9 true",
            "timeout 9 ssh -p 2222 u@10.0.0.9 hostname",
            "ssh u@10.0.0.9",
            "scp model.tar u@10.0.0.9:/tmp",
        ],
    )
    def test_refused_key_names_user_host_and_methods(self, line: str) -> None:
        (found,) = failing("SSH_KEY_NOT_VISIBLE", command(line, REFUSED, stream="stderr", rc=255))
        assert found.verdict == "FAIL"
        assert "u@10.0.0.9" in found.observed
        assert "publickey, keyboard-interactive" in found.observed
        assert "u@10.0.0.9" in found.fix

    def test_offered_keys_are_listed_where_they_were_shown(self) -> None:
        shown = "debug1: Offering public key: /h/.ssh/id_rsa RSA SHA256:abc agent\n"
        (found,) = failing(
            "SSH_KEY_NOT_VISIBLE", command("ssh -v u@10.0.0.9 true", shown + REFUSED, rc=255)
        )
        assert "/h/.ssh/id_rsa RSA SHA256:abc" in found.observed

    def test_unknown_host_key_is_mended_over_the_address_that_is_trusted(self) -> None:
        (found,) = failing(
            "SSH_HOSTKEY_FABRIC",
            command("ssh -o BatchMode=yes a@10.9.0.3 true", UNKNOWN, "laptop", rc=255),
            command("ssh-keygen -F spark3", KNOWN, "laptop"),
        )
        assert found.node == "laptop"
        assert "10.9.0.3" in found.observed
        assert found.fix.startswith("ssh a@spark3 cat /etc/ssh/ssh_host_ed25519_key.pub")
        assert "10.9.0.3" in found.fix
        assert ">> ~/.ssh/known_hosts" in found.fix

    def test_address_that_known_hosts_lacks_is_reported_without_a_login(self) -> None:
        (found,) = failing(
            "SSH_HOSTKEY_FABRIC", command("ssh-keygen -F 10.9.0.3", "", "laptop", rc=1)
        )
        assert "10.9.0.3" in found.observed

    def test_changed_host_key_is_not_taken_for_an_unknown_one(self) -> None:
        text = (
            "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
            "Host key verification failed.\n"
        )
        reading = command("ssh u@10.0.0.9 true", text, rc=255)
        (found,) = failing("SSH_HOSTKEY_CHANGED", reading)
        assert "ssh-keygen -R 10.0.0.9" in found.fix
        assert failing("SSH_HOSTKEY_FABRIC", reading) == []

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("ssh: connect to host 10.0.0.9 port 22: Connection timed out\n", "no answer"),
            ("ssh: connect to host 10.0.0.9 port 22: Connection refused\n", "refuses connections"),
            ("ssh: Could not resolve hostname spark9: Name or service not known\n", "resolved"),
            ("ssh: connect to host 10.0.0.9 port 22: No route to host\n", "no route"),
        ],
    )
    def test_node_that_does_not_answer_is_told_by_its_kind(self, text: str, words: str) -> None:
        (found,) = failing("SSH_UNREACHABLE", command("ssh u@10.0.0.9 true", text, rc=255))
        assert words in found.observed

    def test_login_of_our_own_keeps_its_message_and_hint(self) -> None:
        told = {
            "node": "spark2", "host": "10.0.0.2", "user": "u", "status": "refused",
            "message": "u@10.0.0.2 accepted no key; offered: ~/.ssh/id_ed25519",
            "hint": "ssh-copy-id u@10.0.0.2",
        }  # fmt: skip
        (found,) = failing("SSH_KEY_NOT_VISIBLE", what("connection", told, "spark2"))
        assert found.node == "spark2"
        assert "~/.ssh/id_ed25519" in found.observed
        assert found.fix == "ssh-copy-id u@10.0.0.2"

    def test_login_that_works_passes(self) -> None:
        assert loud(command("ssh u@10.0.0.9 true", "", rc=0)) == []
        told = {"node": "spark2", "host": "10.0.0.2", "user": "u", "status": "ok"}
        (found,) = about("SSH_KEY_NOT_VISIBLE", what("connection", json.dumps(told), "spark2"))
        assert found.outcome == "pass"


class TestKeys:
    @pytest.mark.parametrize(
        "agent", ["The agent has no identities.\n", "Could not open a connection to your agent.\n"]
    )
    def test_encrypted_key_that_no_agent_holds_fails(self, agent: str) -> None:
        (found,) = failing(
            "SSH_KEY_PASSPHRASE",
            command('ssh-keygen -yP "" -f ~/.ssh/k', ENCRYPTED, stream="stderr", rc=255),
            command("ssh-add -l", agent, rc=1),
        )
        assert "/h/.ssh/k is encrypted, and no agent holds it" in found.observed

    def test_encrypted_key_in_an_agent_passes(self) -> None:
        readings = (
            command('ssh-keygen -y -P "" -f ~/.ssh/k', ENCRYPTED, stream="stderr"),
            command("ssh-add -l", "256 SHA256:Kq a@b (ED25519)\n"),
        )
        assert loud(*readings) == []

    def test_exception_of_the_library_is_the_same_fault(self) -> None:
        text = "paramiko.ssh_exception.PasswordRequiredException: Private key file is encrypted\n"
        assert failing("SSH_KEY_PASSPHRASE", what("fabric", text))


class TestTransfer:
    PLAN = what("transfer plan", "transfer: laptop -> spark@10.8.0.5:/data\n")

    @pytest.mark.parametrize(
        "tests",
        [
            [what("connect test, port 22", "10.1.0.5 ok 0.01\n10.8.0.5 timeout 5.0\n", "laptop")],
            [what("connect test", "10.1.0.5:22 ok 1ms\n10.8.0.5:22 no route to host\n", "laptop")],
            [
                command("nc -zv 10.8.0.5 22", "nc: connect to 10.8.0.5 port 22 (tcp) timed out: "
                        "Operation now in progress\n", "laptop"),
                command("nc -zv 10.1.0.5 22", "Connection to 10.1.0.5 22 port [tcp/ssh] "
                        "succeeded!\n", "laptop"),
            ],
        ],
    )  # fmt: skip
    def test_dead_target_is_replaced_by_the_one_that_answers(self, tests: list[Reading]) -> None:
        (found,) = failing("SSH_TRANSFER_ADDR_UNREACHABLE", *tests, self.PLAN)
        assert (found.verdict, found.node) == ("AUTO_CORRECT", "laptop")
        assert "10.8.0.5" in found.observed
        assert "use 10.1.0.5" in found.fix

    def test_nothing_that_answers_fails(self) -> None:
        tests = what("connect test, port 22", "10.1.0.5 refused\n10.8.0.5 timeout\n", "laptop")
        (found,) = failing("SSH_TRANSFER_ADDR_UNREACHABLE", tests, self.PLAN)
        assert found.verdict == "FAIL"

    def test_target_that_answers_passes_whatever_others_do(self) -> None:
        tests = what("connect test, port 22", "10.1.0.5 timeout\n10.8.0.5 ok\n", "laptop")
        assert loud(tests, self.PLAN) == []


class TestSudo:
    @pytest.mark.parametrize(
        ("line", "text", "rc"),
        [
            ("sudo -n true", "sudo: a password is required\n", None),
            ("sudo -n true", "", 1),
            ("sudo -n -v", "Sorry, user spark may not run sudo on n2.\n", 1),
            ("ssh n2 sudo -n true", "sudo: a terminal is required to read the password\n", 1),
            ("sudo -n true; echo rc=$?", "sudo: a password is required\nrc=1\n", 0),
            ("sudo -n whoami", "sudo: se requiere una contraseña\n", None),
        ],
    )
    def test_prompt_fails_before_anything_is_changed(
        self, line: str, text: str, rc: int | None
    ) -> None:
        (found,) = failing(
            "SSH_SUDO_PROMPT", command(line, text, "n2", stream="stderr", rc=rc),
            command("sudo -n true", "", "n1", rc=0),
        )  # fmt: skip
        assert (found.node, found.verdict) == ("n2", "FAIL")
        assert "sudoers" in found.fix

    def test_root_needs_no_sudo(self) -> None:
        row = command('getent passwd "$(id -un)"', "root:x:0:0:root:/root:/bin/bash\n", "n1")
        missing = command("sudo -n true", "sh: 1: sudo: not found\n", "n1", rc=127)
        assert loud(row, missing) == []

    def test_warning_about_the_host_name_is_no_prompt(self) -> None:
        assert loud(command("sudo -n true", "sudo: unable to resolve host n1\n", "n1", rc=0)) == []


class TestPaths:
    @pytest.mark.parametrize(
        ("plain", "login"),
        [
            ("command -v docker hf nvcc", "bash -lc 'command -v docker hf nvcc'"),
            ("ssh n2 'command -v docker hf nvcc'",
             "ssh n2 'bash -lc \"command -v docker hf nvcc\"'"),
            ("which docker hf nvcc", 'bash -lc "which docker hf nvcc"'),
        ],
    )  # fmt: skip
    def test_program_of_login_shells_alone_is_named_by_its_path(
        self, plain: str, login: str
    ) -> None:
        (found,) = failing(
            "SSH_NONINTERACTIVE_PATH",
            command(plain, "/usr/bin/docker\n", "n2", rc=1),
            command(login, "/usr/bin/docker\n/h/.local/bin/hf\n/opt/cuda/bin/nvcc\n", "n2"),
        )
        assert (found.verdict, found.node) == ("WARN", "n2")
        assert "/h/.local/bin/hf" in found.fix
        assert "/opt/cuda/bin/nvcc" in found.fix
        assert "docker" not in found.observed

    def test_program_that_is_nowhere_is_no_matter_of_shells(self) -> None:
        loop = "for t in docker hf; do command -v $t || echo $t -; done"
        text = "/usr/bin/docker\nhf -\n"
        assert loud(command(loop, text, "n2"), command(f"bash -lc '{loop}'", text, "n2")) == []


class TestHomes:
    PASSWD = "bob:x:1000:1000:Bob:/home/bob:/bin/bash\n"

    @pytest.mark.parametrize(
        "reading",
        [
            what("rendered mount", "-v /home/alice/hf:/hf\n", "rank1"),
            what("rendered mounts", "--mount type=bind,src=/home/alice/hf,dst=/hf\n", "rank1"),
            what("docker run", "docker run -d -v /home/alice/hf:/hf:ro image\n", "rank1"),
            what("profile", "model_path: /home/alice/hf\n", format="yaml"),
            command("docker inspect -f '{{json .Mounts}}' r1",
                    '[{"Type":"bind","Source":"/home/alice/hf","Destination":"/hf","RW":false}]',
                    "node2"),
        ],
    )  # fmt: skip
    def test_path_in_the_home_of_another_user_fails(self, reading: Reading) -> None:
        account = command('getent passwd "$(id -un)"', self.PASSWD, "node2")
        (found,) = failing("SSH_HOME_PATH", account, reading)
        assert found.node == "node2"
        assert "/home/alice is not the home of bob on node2" in found.observed
        assert "/home/bob/hf" in found.fix

    @pytest.mark.parametrize("line", ["echo $HOME", "ssh node2 'echo ~'", "printenv HOME"])
    def test_home_is_read_from_the_shell_too(self, line: str) -> None:
        mount = what("rendered mount", "-v /home/alice/hf:/hf\n", "rank1")
        assert failing("SSH_HOME_PATH", command(line, "/home/bob\n", "node2"), mount)

    def test_own_home_and_data_folders_pass(self) -> None:
        account = command("getent passwd bob", self.PASSWD, "node2")
        mounts = "-v /home/bob/hf:/hf\n-v /data/x:/x\n-v /home/bobby:/y\n"
        assert (
            loud(account, what("rendered mount", mounts.replace("-v /home/bobby:/y\n", ""))) == []
        )
        assert failing("SSH_HOME_PATH", account, what("rendered mount", mounts))

    def test_mount_of_another_rank_does_not_concern_this_node(self) -> None:
        account = command("getent passwd bob", self.PASSWD, "node2")
        assert loud(account, what("rendered mount", "-v /home/alice/hf:/hf\n", "rank0")) == []


@pytest.mark.parametrize(
    "argv",
    [
        ("docker", "run", "--speculative-config", '{"method": "dspark", "note": "a b\'c"}'),
        ("sh", "-c", "echo $HOME; echo `id`\n\\"),
        ("", " ", "*", "~", "!x", "a\tb"),
    ],
)
def test_words_come_through_the_quoting_of_a_remote_shell(argv: tuple[str, ...]) -> None:
    assert survives_quoting(argv)


def test_interpreter_may_lie_in_another_home_and_data_may_not() -> None:
    account = command("getent passwd bob", TestHomes.PASSWD, "node2")
    tool = what("profile", "engine:\n  python: /home/alice/venv/bin/python\n", format="yaml")
    assert loud(account, tool) == []
    data = what("profile", "engram:\n  directory: /home/alice/rows\n", format="yaml")
    assert failing("SSH_HOME_PATH", account, data)
