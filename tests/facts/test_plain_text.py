"""Texts as parsers get them: as people paste them, yet never endless."""

from __future__ import annotations

import json

import pytest

from sparkserve.facts.reader import bare_command, plain_text, understand, without_prompt
from sparkserve.facts.registry import READERS
from sparkserve.model.reading import Reading


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a\r\nb\r\n", "a\nb\n"),
        ("\ufeffa=1\n", "a=1\n"),
        ("50%\r60%\n", "50%\r60%\n"),
        ("", ""),
        ("x" * 8000, "x" * 8000),
        ("\x1b[1;32mUp\x1b[0m\n", "Up\n"),
        ("\x1b]0;spark@spark2: ~\x07Up\x1b[K\n", "Up\n"),
    ],
)
def test_forms_of_files_do_not_matter(text: str, plain: str) -> None:
    assert plain_text(text) == plain


def test_middle_of_an_endless_line_is_left_out_and_its_ends_stay() -> None:
    text = f"short\nBEGIN{'x' * 90_000}END\nlast\n"
    lines = plain_text(text).split("\n")
    assert (lines[0], lines[2]) == ("short", "last")
    assert lines[1].startswith("BEGIN")
    assert lines[1].endswith("END")
    assert len(lines[1]) < 8001


def test_json_and_variables_between_nuls_stay_whole() -> None:
    data = json.dumps({"weight_map": {f"layer{n}": "model.safetensors" for n in range(2000)}})
    assert plain_text(data) == data
    environ = "\0".join(f"NAME{n}={n}" for n in range(2000))
    assert plain_text(environ) == environ
    assert len(plain_text("[" * 100_000)) < 8001


def test_many_empty_lines_are_few() -> None:
    assert plain_text("a" + "\n" * 100_000 + "b") == "a" + "\n" * 50 + "b"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("spark@spark2:~$ uname -r\n6.17\n", "6.17\n"),
        ("\nroot@gx10-1:/sys/class# uname -r\n6.17\nroot@gx10-1:/sys/class# ", "6.17\n"),
        ("(venv) u@h:~/a b$ sudo uname -r\n6.17\n", "6.17\n"),
        ("[u@h ~]$ uname -r\n6.17\n", "6.17\n"),
        ("$ uname -r\n6.17\n", "6.17\n"),
        # No prompt, or not that of the command: every line belongs to the answer.
        ("6.17\n", "6.17\n"),
        ("# uname of the node\n6.17\n", "# uname of the node\n6.17\n"),
        ("spark@10.0.0.2: Permission denied.\n", "spark@10.0.0.2: Permission denied.\n"),
        ("", ""),
    ],
)
def test_lines_of_the_shell_go_and_those_of_the_answer_stay(text: str, plain: str) -> None:
    assert without_prompt(text, "uname -r") == plain


@pytest.mark.parametrize(
    "command",
    [
        "cat /proc/buddyinfo 2>&1",
        "sudo cat /proc/buddyinfo",
        "ssh spark@10.0.0.2 'cat /proc/buddyinfo' 2>/dev/null",
        "cat /proc/buddyinfo | less",
        "sudo -u root cat /proc/buddyinfo || true",
    ],
)
def test_ways_to_the_same_output_are_one(command: str) -> None:
    text = "Node 0, zone   Normal   1203    980    702    611    402    233    121     80     44\n"
    plain = understand([Reading(text=text, command="cat /proc/buddyinfo")], READERS)
    other = understand([Reading(text=text, command=command)], READERS)
    assert other.unread == ()
    assert [o.fact for o in other.observations] == [o.fact for o in plain.observations]


def test_redirections_in_the_middle_of_a_command_line_stay() -> None:
    assert bare_command("a 2>&1 | grep x") == "a 2>&1 | grep x"


@pytest.mark.parametrize(
    ("command", "text", "kind"),
    [
        ("ssh u@10.0.0.2 docker ps", "u@10.0.0.2: Permission denied (publickey).\n", "Connection"),
        ("ssh u@n2 nvidia-smi", "Host key verification failed.\n", "Connection"),
        ("ssh n2 hf env", "bash: line 1: hf: command not found\n", "Programs"),
        ("ssh n2 hf env", "\x1b[31mbash: line 1: hf: command not found\x1b[0m\r\n", "Programs"),
        ("ssh n2 'nc -zv 10.0.0.3 22'", "nc: connect to 10.0.0.3 port 22 (tcp) timed out\n",
         "AddressTests"),
        ("ssh n2 'docker run --rm x true'", "exec /bin/true: exec format error\n", "EngineLog"),
        ("sudo -n sysctl -w vm.swappiness=1", "sudo: a password is required\n", "Sudo"),
        ("docker compose up -d", "Cannot connect to the Docker daemon at unix:///x.sock.\n",
         "DockerDaemon"),
    ],
)  # fmt: skip
def test_what_stands_in_place_of_an_answer_is_read_as_what_it_is(
    command: str, text: str, kind: str
) -> None:
    found = understand([Reading(text=text, command=command, rc=1)], READERS)
    assert found.unread == ()
    assert {type(one.fact).__name__ for one in found.observations} == {kind}
