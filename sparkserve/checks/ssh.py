"""Logins: reachability, keys, host keys, sudo, paths and homes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.paths import foreign_homes
from sparkserve.checks.scene import Scene, evidence
from sparkserve.facts.rendered import TransferPlan
from sparkserve.facts.ssh import (
    Account,
    AddressTests,
    Agent,
    Connection,
    KeyFile,
    KnownHosts,
    Sudo,
)
from sparkserve.facts.tools import LoginPrograms, Programs

_NO_LOGIN: dict[str, tuple[str, str]] = {
    "timeout": ("gave no answer in time", "ping -c 3 {host}"),
    "unreachable": ("has no route to it", "ip route get {host}"),
    "refused": ("refuses connections", "on the node: sudo systemctl status ssh"),
    "name-unknown": ("is a name that cannot be resolved", "getent hosts {host}"),
    "lost": ("ended the connection", "ssh -v {target} true"),
    "no-shell": ("gives no shell that runs commands", "on the node: chsh -s /bin/bash {user}"),
}


def _login(scene: Scene) -> Iterator[Judgement]:
    for place, login, reading in scene.seen(Connection):
        node = login.node or place
        if login.status == "ok":
            yield passed(node, f"{login.target} answers")
        elif login.status == "auth-refused":
            yield _refused(scene, node, login)
        elif login.status == "passphrase":
            yield _encrypted(node, "the key for " + login.target, evidence([reading]))
        elif login.status == "host-key-unknown":
            yield _unknown_key(scene, place, node, login)
        elif login.status == "host-key-changed":
            yield _changed_key(node, login)
        else:
            what, fix = _NO_LOGIN[login.status]
            told = {"host": login.host or "HOST", "target": login.target,
                    "user": login.user or "$USER"}  # fmt: skip
            yield Judgement(
                node, "fail", observed=f"{login.target} {what}: {login.message}".rstrip(": "),
                expected="a login without questions", fix=login.hint or fix.format_map(told),
                code="SSH_NO_SHELL" if login.status == "no-shell" else "SSH_UNREACHABLE",
            )  # fmt: skip

    called = {login.host for _, login, _ in scene.seen(Connection)}
    for place, looked_up in scene.each(KnownHosts):
        for one in looked_up.hosts:
            if not one.is_known and one.host not in called:
                unknown = Connection(status="host-key-unknown", host=one.host)
                yield _unknown_key(scene, place, place, unknown)


def _refused(scene: Scene, node: str | None, login: Connection) -> Judgement:
    offered = list(login.offered)
    for _, agent, _ in scene.seen(Agent):
        offered += [f"agent {key}" for key in agent.keys]
    keys = ", ".join(offered) or "none is shown (ssh -v lists them)"
    methods = f"; it would take {', '.join(login.methods)}" if login.methods else ""
    return Judgement(
        node,
        "fail",
        observed=f"{login.target} accepted no key; offered keys: {keys}{methods}",
        expected=f"a key of this user that {login.target} accepts",
        fix=login.hint
        or f"ssh -v {login.target} true 2>&1 | grep Offering   # then: ssh-copy-id {login.target}",
        code="SSH_KEY_NOT_VISIBLE",
        evidence=(login.message,),
    )


def _encrypted(node: str | None, key: str, shown: tuple[str, ...]) -> Judgement:
    path = key if key.startswith(("/", "~")) else ""
    return Judgement(
        node,
        "fail",
        observed=f"{key} is encrypted, and no agent holds it",
        expected="a key that can be used without a person: in an agent, or without passphrase",
        why="nobody can type a passphrase into a login that a program makes",
        fix=f'eval "$(ssh-agent)" && ssh-add {path}'.strip(),
        code="SSH_KEY_PASSPHRASE",
        evidence=shown,
    )


def _unknown_key(scene: Scene, place: str | None, node: str | None, login: Connection) -> Judgement:
    host = login.host or "HOST"
    looked_up = scene.near(place, KnownHosts)
    known = [one.host for one in (looked_up.hosts if looked_up else ()) if one.is_known]
    trusted = next((one for one in known if one != host), None)
    fix = f"ssh-keyscan -t ed25519 {host} >> ~/.ssh/known_hosts   # compare the fingerprint first"
    if trusted is not None:
        # The key comes over the connection that is trusted already.
        at = f"{login.user}@{trusted}" if login.user else trusted
        fix = (
            f"ssh {at} cat /etc/ssh/ssh_host_ed25519_key.pub | sed 's/^/{host} /' "
            ">> ~/.ssh/known_hosts"
        )
    also = f"; {trusted} is known" if trusted else ""
    return Judgement(
        node,
        "fail",
        observed=f"the host key of {host} is not known{also}{_shown(login)}",
        expected="an entry in known_hosts for every address that is used, also on the fabric",
        fix=login.hint or fix,
        code="SSH_HOSTKEY_FABRIC",
        evidence=(login.message,),
    )


def _changed_key(node: str | None, login: Connection) -> Judgement:
    host = login.host or "HOST"
    return Judgement(
        node,
        "fail",
        observed=f"the host key of {host} is not the recorded one{_shown(login)}",
        expected="the recorded key",
        why="the node was installed anew, its address went to another machine, or somebody "
        "stands in between",
        fix=login.hint
        or f"compare at the node's console; only if it is right: ssh-keygen -R {host}",
        code="SSH_HOSTKEY_CHANGED",
        evidence=(login.message,),
    )


def _shown(login: Connection) -> str:
    """What a login of our own says of the keys."""
    return f": {login.message}" if login.node is not None and login.message else ""


def _keys(scene: Scene) -> Iterator[Judgement]:
    for place, key, reading in scene.seen(KeyFile):
        agent = scene.near(place, Agent)
        if key.problem is None:
            yield passed(place, f"{key.path} opens without a passphrase")
        elif key.problem == "encrypted" and agent is not None and agent.keys:
            yield passed(
                place,
                f"{key.path} is encrypted; an agent holds "
                f"{len(agent.keys)} key{'s' * (len(agent.keys) != 1)}",
            )
        elif key.problem == "encrypted":
            yield _encrypted(place, key.path, evidence([reading]))
        else:
            faults = {"missing": "does not exist", "modes": "may be read by others",
                      "unreadable": "cannot be read"}  # fmt: skip
            yield Judgement(
                place, "fail", observed=f"{key.path} {faults[key.problem]}",
                expected="a private key that this user alone can read",
                fix=f"chmod 600 {key.path}" if key.problem == "modes" else f"ls -l {key.path}",
                code="SSH_KEY_NOT_VISIBLE",
            )  # fmt: skip


def _transfers(scene: Scene) -> Iterator[Judgement]:
    tests = scene.each(AddressTests)
    for _, plan, _ in scene.seen(TransferPlan):
        for transfer in plan.transfers:
            target = re.sub(r"^.*@|:(?=/).*$", "", transfer.target)
            for place, fact in tests:
                tried = [one for one in fact.tests if one.address == target]
                if not tried:
                    continue
                if any(one.is_open for one in tried):
                    yield passed(place, f"{target}:{tried[0].port} answers")
                else:
                    yield _corrected(place, target, [o.address for o in fact.tests if o.is_open])


def _corrected(place: str | None, target: str, others: list[str]) -> Judgement:
    return Judgement(
        place,
        "fail",
        observed=f"{target} cannot be reached from {place or 'here'}, so nothing is copied there",
        expected=f"an address that answers: {', '.join(others)}" if others else "an answer",
        fix=f"use {others[0]} for the copy" if others else f"ping -c 3 {target}",
        severity="warning" if others else "error",
        verdict="AUTO_CORRECT" if others else None,
    )


def _sudo(scene: Scene) -> Iterator[Judgement]:
    answers = scene.each(Sudo)
    working = [place for place, sudo in answers if sudo.works]
    for place, sudo in answers:
        account = scene.of(place, Account)
        if sudo.works:
            yield passed(place, "sudo needs no password")
        elif account is not None and account.user == "root":
            yield passed(place, "root needs no sudo")
        else:
            several = scene.fleet is None or len(scene.fleet.nodes) > 1
            yield Judgement(
                place,
                "fail",
                observed=f"`sudo -n true` fails on {place or 'the node'}: {sudo.message}",
                expected="sudo without a password, or no step that needs root",
                fix=f"on {place or 'the node'}: "
                'echo "$USER ALL=(ALL) NOPASSWD: ALL" | sudo tee /etc/sudoers.d/sparkserve',
                # Serving needs no root: where no node has it, only `prepare` will ask.
                severity="error" if scene.fleet is None or working else
                "warning" if several else "info",
            )  # fmt: skip


def _paths(scene: Scene) -> Iterator[Judgement]:
    for place, plain in scene.each(Programs):
        login = scene.near(place, LoginPrograms)
        if login is None:
            continue
        hidden = {
            name: path
            for name, path in login.paths.items()
            if path is not None and plain.paths.get(name, path) is None
        }
        if hidden:
            yield Judgement(
                place,
                "fail",
                observed="only a login shell finds "
                + ", ".join(f"{name} ({path})" for name, path in hidden.items()),
                expected="what is used is on the PATH of a non-interactive shell",
                fix="use the absolute path: " + ", ".join(hidden.values()),
            )
        else:
            yield passed(place, "both shells find the same programs")


def _homes(scene: Scene) -> Iterator[Judgement]:
    for place, account in scene.each(Account):
        found = foreign_homes(scene, place, account.home)
        if account.user == "root":
            # Root may read every home; whether the path is there, other checks say.
            continue
        for path, origin in found:
            home = "/".join(path.split("/")[:3])
            yield Judgement(
                place,
                "fail",
                observed=f"{home} is not the home of {account.user} on {place or 'the node'} "
                f"({account.home}): {origin} {path}",
                expected=f"a path below {account.home}, or one outside of homes",
                fix=f"use {account.home}{path[len(home) :]} there, or ~ in the profile",
            )
        if not found:
            yield passed(place, f"{account.user} has {account.home}")


def _tools(scene: Scene) -> Iterator[Judgement]:
    if scene.wish is None or scene.fleet is None:
        return
    engine = scene.wish.engine
    on_sparks = engine.device == "cuda" and engine.kind != "light" and len(scene.fleet.nodes) > 1
    needed = ["python3"]
    if on_sparks:
        needed += ["ip", "curl", "rsync", "nvidia-smi"]
    if engine.runtime == "container":
        needed.append("docker")
    for place, found in scene.each(Programs):
        missing = [name for name in needed if name in found.paths and found.paths[name] is None]
        if missing:
            yield Judgement(
                place, "fail", observed=f"no {', no '.join(missing)} in a non-interactive shell",
                expected=", ".join(needed),
                fix=f"on {place or 'the node'}: install it (sudo apt install {' '.join(missing)}), "
                "or put it on the PATH of a non-interactive shell",
            )  # fmt: skip
        else:
            yield passed(place, ", ".join(needed))


CHECKS: tuple[Check, ...] = (
    Check(
        "SSH.REACHABLE", "SSH_KEY_NOT_VISIBLE", "Every node can be logged in to", ("doctor",),
        "error", "reach", (Connection, KnownHosts), _login,
        why="nothing can be read or started on a node that refuses the login",
        fix="ssh -v USER@HOST true",
        symptom="'Permission denied (publickey)' or 'Host key verification failed' from a program, "
        "though the same login works in your terminal.",
        also=("SSH_KEY_PASSPHRASE", "SSH_HOSTKEY_FABRIC", "SSH_HOSTKEY_CHANGED", "SSH_UNREACHABLE",
              "SSH_NO_SHELL"),
    ),
    Check(
        "SSH.KEYFILE", "SSH_KEY_PASSPHRASE", "The key can be used without a person", ("doctor",),
        "error", "reach", (KeyFile,), _keys,
        why="a program cannot type a passphrase",
        fix="ssh-add ~/.ssh/id_ed25519",
        symptom="Logins work in a terminal, where an agent or a prompt helps, not in programs.",
        also=("SSH_KEY_NOT_VISIBLE",),
        text_only="the login itself tells it on a live cluster (SSH.REACHABLE)",
    ),
    Check(
        "SSH.TRANSFER", "SSH_TRANSFER_ADDR_UNREACHABLE", "Copies go to an address that answers",
        ("doctor", "prepare"), "error", "reach", (AddressTests, TransferPlan), _transfers,
        why="the machine that sends may stand outside of the fast network",
        fix="send from a node of the fabric, or to the management address",
        symptom="Copying weights or images hangs, though ssh to the node works.",
        text_only="the copy is planned by the one who makes it; doctor copies nothing",
    ),
    Check(
        "SSH.SUDO", "SSH_SUDO_PROMPT", "sudo asks for no password", ("doctor", "prepare"), "error",
        "reach", (Sudo,), _sudo,
        why="a step that needs root stops at the prompt, after others were already changed",
        fix="sudo visudo -f /etc/sudoers.d/sparkserve",
        symptom="'sudo: a password is required' in the middle of a preparation.",
    ),
    Check(
        "SSH.PATH", "SSH_NONINTERACTIVE_PATH", "Both kinds of shell find the same programs",
        ("doctor",), "warning", "config", (Programs,), _paths,
        why="a command over SSH gets no login shell: ~/.profile and /etc/profile.d are not read",
        fix="use absolute paths, or set PATH at the very top of ~/.bashrc",
        symptom="'command not found' for a program that you use on that machine every day.",
    ),
    Check(
        "HOST.TOOLS", "HOST_TOOL_MISSING", "The programs that are needed are there", ("doctor",),
        "error", "hardware", (Programs,), _tools,
        why="sparkserve and the engine call them",
        fix="install them, or put them on the PATH of a non-interactive shell",
        symptom="'command not found' at the start.",
    ),
    Check(
        "SSH.HOME", "SSH_HOME_PATH", "Paths lie in the home of the node's own user",
        ("profile", "doctor"), "error", "config", (Account,), _homes,
        why="the user has another name there, so docker makes an empty folder of root in its place",
        fix="use ~ or a path outside of homes",
        symptom="The model is not found on a worker, or is downloaded anew; an empty folder of "
        "root appears below /home.",
    ),
)  # fmt: skip


def survives_quoting(argv: tuple[str, ...]) -> bool:
    """Whether a command line comes through the quoting that our transport uses unchanged."""
    return tuple(shlex.split(shlex.join(argv))) == argv
