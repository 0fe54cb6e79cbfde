"""What every host does, whichever way it is reached: this machine and a real sshd."""

import hashlib
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkserve.errors import RemoteError
from sparkserve.transport import pump
from tests.transport.loopback_sshd import wait_until
from tests.transport.processes import pids_of, sleeper

HOSTILE = [
    "", " ", "-n", "--help", "a b", "it's", '"', "'", "''", "`id`", "$(id)", "${HOME}", "$HOME",
    "\\", "\\n", "a\nb", "\n", "\t", "*", "?", "[a]", "~", "~root", "!", "!!", "#", ";", "&", "|",
    "<", ">", "(", ")", "{a,b}", "%s", '{"a": "b\'c", "d": [1, "$x"]}', "ünï→\U0001f600", "\x01",
    "\x7f", "a" * 5000, "'\"'\"'",
]  # fmt: skip
ECHO = ["import json,sys; print(json.dumps(sys.argv[1:]))"]


def python(host, code, *argv, **kwargs):
    kwargs.setdefault("timeout_s", 60)
    return host.run([sys.executable, "-c", code, *argv], **kwargs)


def test_output_status_and_time_come_back(host):
    result = host.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=60)
    assert (result.status, result.exit_code, result.ok) == ("exited", 3, False)
    assert (result.stdout, result.stderr, result.node) == ("out\n", "err\n", "spark1")
    assert result.elapsed_s > 0
    assert result.command.startswith("sh -c 'echo out;")


def test_hostile_arguments_arrive_as_they_are(host):
    import json

    result = python(host, *ECHO, *HOSTILE)
    assert json.loads(result.stdout) == HOSTILE


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_arguments_arrive_as_they_are(host, words):
    result = host.run(["printf", "%s\\0", *words, "end"], timeout_s=60)
    assert result.stdout == "".join(f"{word}\0" for word in [*words, "end"])


@pytest.mark.parametrize("program", HOSTILE[:12])
def test_a_hostile_program_name_is_not_found_rather_than_run(host, program):
    result = host.run([program, "x"], timeout_s=60)
    assert result.status == "exited"
    assert result.exit_code in (125, 126, 127)


def test_nothing_and_nul_bytes_are_refused_before_anything_runs(host):
    with pytest.raises(ValueError, match="empty argv"):
        host.run([], timeout_s=60)
    with pytest.raises(ValueError, match="NUL"):
        host.run(["echo", "a\0b"], timeout_s=60)


def test_stdin_arrives_whole_and_ends(host):
    text = "ünï→\n" * 200_000
    result = host.run(["sha256sum"], stdin=text, timeout_s=60)
    assert result.stdout.split()[0] == hashlib.sha256(text.encode()).hexdigest()


def test_input_and_output_at_once_do_not_wait_for_each_other(host):
    text = "0123456789abcdef" * (512 << 10)
    result = host.run(["cat"], stdin=text, timeout_s=60)
    assert result.ok
    assert result.stdout == text


@pytest.mark.parametrize("stdin", [None, ""])
def test_without_input_stdin_is_at_its_end(host, stdin):
    assert host.run(["cat"], stdin=stdin, timeout_s=60).ok


def test_a_program_may_leave_its_input_unread(host):
    result = host.run(["sh", "-c", "exec <&-; echo done"], stdin="x" * 5_000_000, timeout_s=60)
    assert (result.exit_code, result.stdout) == (0, "done\n")


def test_a_script_of_a_megabyte_runs(host):
    lines = "\n".join(f"x{number}='{'y' * 100}'" for number in range(9000))
    result = host.script(f'{lines}\necho ${{#x8999}} "$0"\n', timeout_s=60)
    assert result.ok, result.stderr[:500]
    assert result.stdout.split()[0] == "100"


def test_a_command_in_a_script_cannot_swallow_the_rest_of_it(host):
    result = host.script("cat\necho after\n", timeout_s=60)
    assert result.stdout == "after\n"


def test_a_scripts_own_exit_code_comes_back(host):
    assert host.script("echo a; exit 7\necho b", timeout_s=60).exit_code == 7
    assert host.script("if", timeout_s=60).exit_code not in (0, None)


def test_megabytes_of_both_streams_arrive_in_order(host):
    code = (
        "import sys\n"
        "for n in range(20):\n"
        "    sys.stdout.write(str(n % 10) * 400_000); sys.stdout.flush()\n"
        "    sys.stderr.write('e' * 100_000); sys.stderr.flush()\n"
    )
    result = python(host, code)
    assert result.stdout == "".join(str(n % 10) * 400_000 for n in range(20))
    assert result.stderr == "e" * 2_000_000


def test_bytes_that_are_no_text_are_replaced(host):
    assert host.run(["printf", "\\377a"], timeout_s=60).stdout == "�a"


def test_too_much_output_is_an_error_and_ends_the_program(host, mark, monkeypatch):
    monkeypatch.setattr(pump, "OUTPUT_LIMIT_BYTES", 100_000)
    with pytest.raises(RemoteError, match="of output: yes"):
        host.run(["yes", mark], timeout_s=60)
    wait_until(lambda: not pids_of(mark), "the program is gone")


@pytest.mark.parametrize("stdin", [None, "input"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_signal_is_its_negative_number(host, stdin, number):
    result = host.run(["sh", "-c", f"kill -{number.name[3:]} $$"], stdin=stdin, timeout_s=60)
    assert (result.status, result.exit_code) == ("exited", -number)


@pytest.mark.parametrize("code", [0, 1, 124, 125, 126, 127, 128, 137, 193, 255])
def test_exit_codes_come_back_as_they_are_but_for_those_of_signals(host, code):
    result = host.run(["sh", "-c", f"exit {code}"], timeout_s=60)
    assert (result.status, result.exit_code) == ("exited", -9 if code == 137 else code)


@pytest.mark.parametrize("stdin", [None, "input"])
def test_a_time_limit_ends_the_whole_family(host, mark, stdin):
    sleep = sleeper(mark)
    code = f"{sleep} & (trap '' TERM; {sleep}) & {sleep}"
    result = host.run(["sh", "-c", code], stdin=stdin, timeout_s=0.5)
    assert (result.status, result.exit_code, result.ok) == ("timed-out", None, False)
    assert result.elapsed_s >= 0.5
    wait_until(lambda: not pids_of(mark), "the shell is gone")


def test_a_time_limit_ends_a_program_that_ignores_sigterm(host, mark):
    code = f"import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(600)  # {mark}"
    result = python(host, code, timeout_s=0.5)
    assert result.status == "timed-out"
    wait_until(lambda: not pids_of(mark), "the program is gone")


def test_output_before_the_time_limit_is_kept(host):
    result = host.run(["sh", "-c", "echo early; sleep 600"], timeout_s=0.7)
    assert (result.status, result.stdout) == ("timed-out", "early\n")


def test_interrupt_signals_are_not_ignored_by_what_runs(host):
    code = "import signal; print(signal.getsignal(2) is signal.default_int_handler)"
    assert python(host, code).stdout == "True\n"
    assert python(host, code, stdin="x").stdout == "True\n"


def test_a_daemon_that_leaves_the_session_outlives_the_command(host, mark, tmp_path):
    code = f"setsid sh -c 'echo $$ >{tmp_path}/pid; exec sleep 600 # {mark}' >/dev/null 2>&1 &"
    result = host.run(["sh", "-c", code, mark], timeout_s=60)
    assert result.ok
    wait_until(lambda: (tmp_path / "pid").exists(), "the daemon runs")
    pid = int((tmp_path / "pid").read_text())
    host.close()
    assert Path(f"/proc/{pid}").exists()
    os.kill(pid, signal.SIGKILL)


def test_a_child_that_keeps_stdout_open_does_not_hold_the_result_back(host, mark):
    code = f"{sleeper(mark)} & echo done"
    result = host.run(["sh", "-c", code], timeout_s=60)
    assert (result.status, result.stdout) == ("exited", "done\n")
    assert result.elapsed_s < 30


def test_many_threads_use_one_host_at_once(host):
    results = {}

    def work(number):
        results[number] = host.run(["sh", "-c", f"sleep 0.2; echo {number}"], timeout_s=120)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: r.stdout for n, r in results.items()} == {n: f"{n}\n" for n in range(24)}


def test_streamed_lines_come_one_by_one_while_the_program_runs(host, tmp_path):
    gate, got = tmp_path / "gate", []

    def take(line):
        got.append(line)
        if line == "first":
            gate.touch()

    code = f"echo first; until test -e {gate}; do sleep 0.02; done; printf 'second\\r\\n\\nlast'"
    result = host.stream(["sh", "-c", code], on_line=take, cancel=threading.Event())
    assert got == ["first", "second", "", "last"]
    assert (result.exit_code, result.stdout) == (0, "")


def test_a_stream_keeps_the_end_of_stderr(host):
    code = "head -c 200000 /dev/zero | tr '\\0' e >&2; echo END >&2; exit 4"
    result = host.stream(["sh", "-c", code], on_line=print, cancel=threading.Event())
    assert result.exit_code == 4
    assert result.stderr.endswith("END\n")
    assert len(result.stderr) <= 64 << 10


def test_a_line_without_end_is_handed_over_in_pieces(host):
    got = []
    code = "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo next"
    host.stream(["sh", "-c", code], on_line=got.append, cancel=threading.Event())
    assert "".join(got[:-1]) == "x" * 3_000_000
    assert got[-1] == "next"
    assert max(len(line) for line in got) <= 2 * pump.LINE_LIMIT_BYTES


def test_cancelling_a_stream_ends_the_remote_family(host, mark):
    cancel = threading.Event()
    sleep = sleeper(mark)
    result = host.stream(
        ["sh", "-c", f"{sleep} & (trap '' TERM; {sleep}) & echo ready; {sleep}"],
        on_line=lambda line: cancel.set(),
        cancel=cancel,
    )
    assert not result.ok
    wait_until(lambda: not pids_of(mark), "the remote program is gone")


def test_an_error_in_the_callback_comes_out_and_ends_the_program(host, mark):
    def fail(line):
        raise RuntimeError("callback")

    with pytest.raises(RuntimeError, match="callback"):
        host.stream(
            ["sh", "-c", f"echo x; exec {sleeper(mark)}"], on_line=fail, cancel=threading.Event()
        )
    wait_until(lambda: not pids_of(mark), "the remote program is gone")


def test_a_quick_stream_of_many_lines_loses_none(host):
    got = []
    host.stream(["seq", "1", "200000"], on_line=got.append, cancel=threading.Event())
    assert got == [str(number) for number in range(1, 200_001)]


def test_a_put_file_has_content_mode_and_parents(host, tmp_path):
    path = tmp_path / "a b" / "$(id)" / "-f'\"\n ü"
    content = bytes(range(256)) * 5000
    host.put(content, str(path), mode=0o640)
    assert path.read_bytes() == content
    assert path.stat().st_mode & 0o7777 == 0o640
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    host.put(b"", str(path), mode=0o600)
    assert path.read_bytes() == b""
    assert path.stat().st_mode & 0o7777 == 0o600


def test_put_never_expands_a_path(host):
    for path in ("~/x", "x", "./x", ""):
        with pytest.raises(ValueError, match="absolute"):
            host.put(b"", path)


def test_put_replaces_the_file_a_link_names_not_what_it_points_to(host, tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    host.put(b"new", str(tmp_path / "link"))
    assert (tmp_path / "real").read_text() == "old"
    assert (tmp_path / "link").read_text() == "new"


@pytest.mark.parametrize("obstacle", ["directory", "file as parent"])
def test_a_put_that_cannot_be_says_why_and_leaves_nothing(host, tmp_path, obstacle):
    path = tmp_path / "x"
    if obstacle == "directory":
        (path / "inner").mkdir(parents=True)
    else:
        path.write_text("old")
        path = path / "y"
    with pytest.raises(RemoteError, match=r"spark1: cannot write .*/x") as caught:
        host.put(b"new", str(path))
    assert not caught.value.result.ok
    assert list(tmp_path.rglob("*.part-*")) == []


def test_a_forwarded_port_reaches_a_listener(host):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        forwarded = host.forward(server.getsockname()[1])
        with socket.create_connection(("127.0.0.1", forwarded.port), 20) as client:
            far, _ = server.accept()
            with far:
                client.sendall(b"ping")
                assert far.recv(10) == b"ping"
                far.sendall(b"x" * 3_000_000)
                far.shutdown(socket.SHUT_WR)
                got = b""
                while data := client.recv(1 << 20):
                    got += data
        assert got == b"x" * 3_000_000
        forwarded.close()
        forwarded.close()
