"""Logins: what SSH answered, keys, agents, host keys, sudo, home folders."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Literal

from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader, ask_command, bare_command
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading

LoginStatus = Literal[
    "ok",
    "auth-refused",
    "passphrase",
    "host-key-unknown",
    "host-key-changed",
    "name-unknown",
    "refused",
    "timeout",
    "unreachable",
    "no-shell",
    "lost",
]


class Connection(Fact):
    """The outcome of one login from one place to one address."""

    status: LoginStatus
    user: str | None = None
    host: str | None = None
    """Address or name that was called."""
    port: int | None = None
    node: str | None = None
    """Name of the node in the cluster file, where the login was ours."""
    offered: tuple[str, ...] = ()
    """Keys that were offered; empty where nothing was told."""
    methods: tuple[str, ...] = ()
    """What the server would have accepted."""
    message: str = ""
    hint: str | None = None

    @property
    def target(self) -> str:
        """``user@host`` as far as known."""
        host = self.host or self.node or "the node"
        return f"{self.user}@{host}" if self.user else host


class KeyFile(Fact):
    """Whether a private key can be used without a person."""

    path: str
    problem: Literal["encrypted", "missing", "modes", "unreadable"] | None = None
    """None = it can be read without a passphrase."""

    def merged(self, other: KeyFile) -> KeyFile:
        """Of several keys the first that cannot be used."""
        return self if self.problem else other


class Agent(Fact):
    """What ``ssh-add -l`` lists."""

    keys: tuple[str, ...] = ()
    """Fingerprints with comments."""
    is_reachable: bool | None = None


class KnownHost(Model):
    """Whether one address has an entry in known_hosts."""

    host: str
    is_known: bool


class KnownHosts(Fact):
    """Addresses that were looked up in known_hosts."""

    hosts: tuple[KnownHost, ...] = ()


class AddressTest(Model):
    """Whether a TCP connection to one address could be made."""

    address: str
    port: int = 22
    is_open: bool


class AddressTests(Fact):
    """Addresses that were tried for logins and copies, from one place."""

    tests: tuple[AddressTest, ...] = ()


class Sudo(Fact):
    """Whether sudo works without a password."""

    works: bool
    message: str = ""


class Account(Fact):
    """The SSH user of a node."""

    user: str
    home: str


_STATUS: tuple[tuple[LoginStatus, str], ...] = (
    ("host-key-changed", r"REMOTE HOST IDENTIFICATION HAS CHANGED"
     r"|(?i:host key .* has changed)|Host key for \S+ has changed"),
    ("host-key-unknown", r"No \S+ host key is known for|[Hh]ost key verification failed"
     r"|[Hh]ost key of \S+ is not known|authenticity of host .* can't be established"
     r"|not found in known_hosts"),
    ("passphrase", r"Private key file is encrypted|incorrect passphrase|PasswordRequiredException"
     r"|Enter passphrase for"),
    ("auth-refused", r"Permission denied \(|Permission denied, please try again|accepted no key"
     r"|Too many authentication failures|AuthenticationException|Authentication failed"),
    ("name-unknown", r"Could not resolve hostname|cannot be resolved|Name or service not known"
     r"|nodename nor servname"),
    ("refused", r"Connection refused|refused the connection"),
    ("timeout", r"(?i)connection timed out|operation timed out|connect to host \S+ .*timed out"
     r"|no answer from|banner exchange.*timed? ?out"),
    ("unreachable", r"No route to host|no route to|Network is unreachable|Host is down"),
    ("no-shell", r"This account is currently not available|no shell that runs scripts"
     r"|shell request failed"),
    ("lost", r"kex_exchange_identification|Connection (?:closed|reset) by|Broken pipe"
     r"|ended the connection|connection was (?:lost|closed)"),
)  # fmt: skip


def login_status(text: str) -> LoginStatus | None:
    """What kind of refusal a text of ssh, paramiko or ours tells; None = none that is known.

    A changed host key comes first: ssh ends such a text with the line of an unknown one.
    """
    return next((status for status, regex in _STATUS if re.search(regex, text)), None)


def _login(reading: Reading) -> Iterator[Connection]:
    user, host, port = _target(reading.command or "")
    text = reading.text
    status = login_status(text)
    if status is None:
        if reading.rc == 0 or (reading.rc is None and not text.strip()):
            status = "ok"
        elif reading.rc == 255:
            status = "lost"
        else:
            raise UnusableOutput(f"no outcome of a login: {text.strip()[:100]}")
    if found := re.search(r"(?m)^(?:([\w.-]+)@)?([\w.:-]+): Permission denied \(", text):
        user, host = found[1] or user, found[2] if host is None else host
    yield Connection(
        status=status,
        user=user,
        host=host,
        port=port,
        offered=tuple(re.findall(r"Offering public key: (.+?)\s*$", text, re.MULTILINE)),
        methods=accepted_methods(text),
        message=last_line(text),
    )


def accepted_methods(text: str) -> tuple[str, ...]:
    """What the server would have accepted, by ssh's last line."""
    methods = re.search(r"Permission denied \(([^)]*)\)", text)
    return tuple(methods[1].split(",")) if methods else ()


def _target(command: str) -> tuple[str | None, str | None, int | None]:
    """(user, host, port) of an ssh command line."""
    try:
        words = shlex.split(bare_command(command))
    except ValueError:
        words = command.split()
    user, host, port = None, None, None
    rest = iter(words[1:])
    for word in rest:
        if re.fullmatch(r"-[BbcDEeFIiJLlmOopQRSWw]", word):
            value = next(rest, "")
            user = value if word == "-l" else user
            port = int(value) if word == "-p" and re.fullmatch(r"\d{1,5}", value) else port
        elif not word.startswith("-"):
            name, at, address = word.rpartition("@")
            user, host = (name if at else user), address
            break
    return user, host, port


def last_line(text: str) -> str:
    """The last line that is not blank, shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


_OURS: dict[str, LoginStatus] = {
    "ok": "ok", "refused": "auth-refused", "host-key": "host-key-unknown", "lost": "lost",
    "unreachable": "unreachable", "no-shell": "no-shell", "failed": "lost",
}  # fmt: skip
"""States that doctor writes of its own logins, where its sentence tells no more."""


def _told(reading: Reading) -> Iterator[Connection]:
    """The reading ``connection`` that doctor writes about a login of its own."""
    told = json.loads(reading.text)
    if not isinstance(told, dict):
        raise UnusableOutput("expected a JSON object")
    message, said = str(told.get("message") or ""), str(told.get("status"))
    status = "ok" if said == "ok" else login_status(message) or _OURS.get(said)
    if status is None:
        raise UnusableOutput(f"a connection of unknown state: {said[:60]}")
    keys = re.search(r"offered: ([^;]*)", message)
    offered = tuple(keys[1].split(", ")) if keys and keys[1].strip() != "none" else ()
    if status == "auth-refused" and not offered and "needs a passphrase" in message:
        status = "passphrase"
    yield Connection.model_validate(
        {
            "status": status, "node": told.get("node") or reading.node, "user": told.get("user"),
            "host": told.get("host"), "port": told.get("port"), "message": message,
            "hint": told.get("hint") or None, "offered": offered,
        }
    )  # fmt: skip


def _key_file(reading: Reading) -> Iterator[KeyFile]:
    command = bare_command(reading.command or "")
    named = re.search(r"-f[ =]?(\S+)", command)
    text = reading.text
    shown = re.search(r"Load key \"?([^\":]+)\"?:", text)
    path = (shown[1] if shown else named[1] if named else "the key").strip("'\"")
    if re.search(r"incorrect passphrase|Enter passphrase|is encrypted", text):
        yield KeyFile(path=path, problem="encrypted")
    elif re.search(r"UNPROTECTED PRIVATE KEY|bad permissions|are too open", text):
        yield KeyFile(path=path, problem="modes")
    elif re.search(r"No such file", text):
        yield KeyFile(path=path, problem="missing")
    elif re.search(r"Permission denied|invalid format|error in libcrypto", text):
        yield KeyFile(path=path, problem="unreadable")
    elif re.match(r"(?:ssh|ecdsa|sk)-\S+ AAAA", text.strip()):
        yield KeyFile(path=path)
    else:
        raise UnusableOutput(f"no public key and no reason: {text.strip()[:100]}")


def _agent(reading: Reading) -> Iterator[Agent]:
    text = reading.text
    if re.search(r"(?i)no identities", text):
        yield Agent(is_reachable=True)
    elif re.search(r"(?i)could not open a connection|error connecting to agent", text):
        yield Agent(is_reachable=False)
    else:
        keys = re.findall(
            r"^(?:\d+ )?((?:SHA256|MD5):\S+.*|(?:ssh|ecdsa|sk)-\S+ AAAA.*)$", text, re.M
        )
        if not keys:
            raise UnusableOutput(f"no list of keys: {text.strip()[:100]}")
        yield Agent(keys=tuple(keys), is_reachable=True)


def _known(reading: Reading) -> Iterator[KnownHosts]:
    host = re.search(r"-F\s*(\S+)", reading.command or "")
    if host is None:
        raise UnusableOutput("no address was looked up")
    found = re.search(r"(?m)^# Host .* found|^\S+ (?:ssh|ecdsa|sk)-\S+ AAAA", reading.text)
    if found is None and reading.text.strip():
        raise UnusableOutput(f"no answer of ssh-keygen -F: {reading.text.strip()[:100]}")
    known = KnownHost(host=host[1].strip("'\""), is_known=found is not None)
    yield KnownHosts(hosts=(known,))


_TRIED = re.compile(
    r"(?:\[(?P<bracketed>[^\]]+)\]|(?P<address>[\w.-]+|[0-9a-fA-F]*(?::[0-9a-fA-F]*){2,}))"
    r"(?:[: ](?:port )?(?P<port>\d{1,5}))?(?:/tcp)?(?: \(\w+\))?"
    r"(?: port \[tcp/\S+\])?\s*(?:[:=-]>?)?\s+(?P<result>ok|open|succeeded|success|connected|"
    r"time[d-]?[ -]?out|refused|unreachable|no route to host|filtered|closed|fail(?:ed)?)\b",
    re.IGNORECASE,
)


def _tests(reading: Reading) -> Iterator[AddressTests]:
    found = []
    for shown in reading.text.splitlines():
        line = " ".join(shown.split())
        line = re.sub(r"^nc: connect to |^Connection to |^\S+ to (?=\S+ port)", "", line)
        row = _TRIED.match(re.sub(r"\(tcp\) failed: Connection ", "", line))
        if row:
            good = row["result"].lower() in ("ok", "open", "succeeded", "success", "connected")
            port = int(row["port"] or 22)
            found.append(
                AddressTest(address=row["bracketed"] or row["address"], port=port, is_open=good)
            )
    if not found:
        raise UnusableOutput("no line ADDRESS RESULT")
    yield AddressTests(tests=tuple(found))


def _sudo(reading: Reading) -> Iterator[Sudo]:
    text, rc = reading.text.strip(), reading.rc
    if (told := re.search(r"(?:^|\brc=?\s*)(\d{1,3})$", text)) and "$?" in (reading.command or ""):
        # `sudo -n true; echo $?`: the text ends with the status, and rc is that of echo.
        rc = int(told[1])
    complaint = re.search(r"(?m)^sudo: (?!unable to resolve host).*|^.*\bsudo: .*not found.*", text)
    if rc == 0:
        yield Sudo(works=True)
    elif rc is not None:
        yield Sudo(works=False, message=last_line(text) or f"exit {rc}")
    elif complaint or re.search(r"(?i)not in the sudoers|may not run sudo", text):
        yield Sudo(works=False, message=complaint[0].strip() if complaint else last_line(text))
    elif not text and reading.stream == "stdout":
        yield Sudo(works=True)
    else:
        raise UnusableOutput(f"no outcome of sudo: {text[:100]}")


def _account(reading: Reading) -> Iterator[Account]:
    text = reading.text
    row = re.search(r"(?m)^([\w.-]+):[^:]*:\d+:\d+:[^:]*:(/[^:\s]*):", text)
    if row:
        yield Account(user=row[1], home=row[2])
        return
    home = re.fullmatch(r"\s*(?:(?P<user>[\w.-]+)\s+)?(?:HOME=)?(?P<home>/\S*)\s*", text)
    if home is None:
        raise UnusableOutput(f"no home folder: {text.strip()[:100]}")
    # Without a name of its own: the folder's is the user's nearly everywhere.
    named = home["home"].rstrip("/").rpartition("/")[2]
    yield Account(user=home["user"] or named, home=home["home"])


_SSH_SAYS = (
    r"(?m)^(?:(?:[\w.-]+@)?[\w.:-]+: )?Permission denied \((?:[a-z-]+,?)+\)|^Host key verification"
    r" failed|^No \S+ host key is known for|REMOTE HOST IDENTIFICATION HAS CHANGED|^ssh: connect to"
    r" host |^ssh: Could not resolve hostname|^kex_exchange_identification: |Too many"
    r" authentication failures"
)
"""What stands in place of the output where ssh itself did not get through."""
READERS: tuple[Reader, ...] = (
    Reader("ssh.connection", (Connection,), _told, whats=(r"connection",)),
    Reader(
        "ssh.refused", (Connection,), _login, commands=(r"ssh -?\S.*",), holds=_SSH_SAYS,
    ),
    Reader(
        "ssh.traceback", (Connection,), _login, holds=r"PasswordRequiredException|paramiko",
        whats=(r"(?:python |fabric |paramiko )?(?:traceback|error|exception)",),
    ),
    Reader(
        "ssh.login", (Connection,), _login,
        commands=(r"ssh (?!.*\b(?:sudo|docker)\b).*\s['\"]?"
                  r"(?:true|hostname|exit|exit 0|uptime|whoami)['\"]?",
                  r"ssh (?:-\S+ (?:\w+=\S+ )?)*\S+@?\S+"),
        whats=(r"ssh(?: login| -v)?(?: of .*| to .*)?", r"fabric|paramiko(?: error)?"),
    ),
    Reader("ssh.key_file", (KeyFile,), _key_file, commands=(r"ssh-keygen .*-y.*",)),
    Reader("ssh.known", (KnownHosts,), _known, commands=(r"ssh-keygen .*-F.*",)),
    Reader("ssh.agent", (Agent,), _agent, commands=(r"ssh-add (?:.* )?-[lL].*",)),
    Reader(
        "ssh.tests", (AddressTests,), _tests, commands=(r"(?:.* )?['\"]?nc .*-\w*z.* 22\b.*",),
        whats=(r"(?:ssh |tcp )?connect(?:ion)? tests?\b.*", r".*connect.*\bport 22\b.*"),
    ),
    Reader(
        "ssh.sudo", (Sudo,), _sudo,
        # What is left of `sudo -n ...` without its first two words comes second.
        commands=(
            r"sudo (?:-\w+ )*(?:true|-v|-l|id|whoami|echo \S+)\b.*", r"(?:true|-v|-l)\b.*|whoami",
        ),
    ),
    Reader(
        "ssh.account", (Account,), _account,
        commands=(r"getent passwd .*", r"echo \"?(?:~|\$\{?HOME\}?)\"?", r"printenv HOME",
                  r"ssh .*\becho ['\"\\]*(?:~|\$\{?HOME\}?)['\"]*", r"grep .*/etc/passwd.*",
                  r"(?:id -un|whoami) ?(?:;|&&) ?echo \"?(?:~|\$\{?HOME\}?)\"?"),
    ),
)  # fmt: skip
LAST: tuple[Reader, ...] = (
    Reader(
        "ssh.sudo_prompt",
        (Sudo,),
        _sudo,
        commands=(r".*",),
        holds=r"(?m)^sudo: (?:a password is required|a terminal is required)",
    ),
)
"""Of commands that no other reader takes."""
ASKS: tuple[Ask, ...] = (
    ask_command("ssh.sudo", "sudo -n true"),
    ask_command("ssh.account", 'getent passwd "$(id -un)"'),
)
