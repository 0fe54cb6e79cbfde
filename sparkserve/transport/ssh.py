"""A node over SSH: the only place that knows fabric and paramiko; import it lazily.

fabric opens the connection (through jump hosts where there are any); commands run on paramiko
channels, because invoke reads output in pieces of 1000 bytes. A command's argv reaches the
node's login shell exactly once, quoted; that shell must read POSIX quotes (not csh or fish).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fabric
import paramiko

from sparkserve.errors import ConfigError, ConnectionLostError, NodeError
from sparkserve.transport.channel import ChannelProcess
from sparkserve.transport.commands import Commands
from sparkserve.transport.forward import Forwarder, Stream
from sparkserve.transport.host import ForwardedPort, Result
from sparkserve.transport.hostkeys import HostKey, host_key, public_blobs
from sparkserve.transport.local import PipedSocket
from sparkserve.transport.pump import Collector, Order, OutputTooLarge, Sink, pump
from sparkserve.transport.put import put_argv, put_error, put_limit_s
from sparkserve.transport.reach import changed_key, refused_keys, unknown_key, unreachable
from sparkserve.transport.results import nothing_of, result_of, too_much
from sparkserve.transport.sockets import open_socket
from sparkserve.transport.target import Target
from sparkserve.transport.wrapper import command_line, wrapped

CONNECT_TIMEOUT_S = 10
"""Per step of a connection; a Spark on the LAN answers in milliseconds, mDNS may take seconds."""
SESSIONS = 8
"""Commands at once on one connection; sshd's MaxSessions is 10 by default."""
COMMAND_LIMIT_BYTES = 120_000
"""Linux gives one argument 128 KiB, and the login shell gets the whole command as one."""
_SESSION_WAIT_S, _SESSION_RETRY_S, _PROBE_S = 30.0, 0.1, 5.0

# Without a handler Python prints paramiko's internal tracebacks to stderr; what matters of
# them comes back as our errors.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class SshHost(Commands):
    """Runs commands on a node over one SSH connection; safe to use from several threads.

    A dead connection is opened again by the next call; the call during which it died says
    ``lost`` and is never repeated by itself. Behind a jump host a dead link to the node is
    noticed only by the time limits of the commands.
    """

    def __init__(self, target: Target, *, known_hosts: Path) -> None:
        """Describe the node; ``open`` connects.

        known_hosts: our own file of accepted host keys, which wins over the user's.
        """
        self._target = target
        self._known_hosts = known_hosts
        self._hops: list[Any] = []
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._sessions = threading.BoundedSemaphore(SESSIONS)
        self._forwarders: list[Forwarder] = []
        self._closed = False

    @property
    def name(self) -> str:
        """The node's name in the cluster file."""
        return self._target.node

    def open(self) -> None:
        """Connect, if not connected.

        Raises:
            UnreachableError: no answer, each kind with its own sentence.
            HostKeyError: the host key is unknown or changed.
            AuthenticationError: no key was accepted; lists what was offered.
        """
        self._transport()

    def put(self, content: bytes, path: str, *, mode: int = 0o644) -> None:
        """Write a file: part name, mode, content, fsync, hash compared, rename.

        Raises:
            RemoteError: no space, no permission, or the hash differs; the old file is intact.
            ConnectionLostError: the link went away; the old file is intact.
            ValueError: the path is not absolute.
        """
        argv = put_argv(content, path, mode)
        order = Order(self.name, argv, content, put_limit_s(content))
        result = self._drive(order, Collector())
        if not result.ok:
            raise put_error(self.name, path, content, result)

    def forward(self, remote_port: int) -> ForwardedPort:
        """Reach a TCP port that listens on the node's loopback.

        Raises:
            NodeError: the connection is dead and cannot be opened again.
        """
        self.open()

        def open_far() -> Stream:
            try:
                channel: Stream = self._transport().open_channel(
                    "direct-tcpip",
                    ("127.0.0.1", remote_port),
                    ("127.0.0.1", 0),
                    timeout=CONNECT_TIMEOUT_S,
                )
            except (paramiko.SSHException, NodeError) as error:
                raise OSError(str(error)) from error
            return channel

        forwarder = Forwarder(open_far)
        self._forwarders.append(forwarder)
        return forwarder

    def close(self) -> None:
        """Close the connection and its forwarded ports; commands still running on it end."""
        self._closed = True
        for forwarder in self._forwarders:
            forwarder.close()
        with self._lock:
            _close_all(self._hops)

    def _drive(self, order: Order, sink: Sink) -> Result:
        if not self._sessions.acquire(timeout=order.limit_s):
            return nothing_of(order, "timed-out", f"{SESSIONS} other commands run on this node")
        try:
            try:
                channel = self._start(order)
            except paramiko.ChannelException as error:
                return nothing_of(order, "timed-out", f"sshd opens no more sessions: {error}")
            except (NodeError, paramiko.SSHException, EOFError, OSError) as error:
                return nothing_of(order, "lost", str(error) or "the connection was lost")
            with _ended(channel):
                process = ChannelProcess(channel, alive=lambda: _is_alive(channel.transport))
                if order.stdin == b"":
                    process.close_stdin()
                try:
                    ending = pump(process, sink, order)
                except OutputTooLarge as error:
                    raise too_much(order) from error
            return result_of(order, sink, ending)
        finally:
            self._sessions.release()

    def _start(self, order: Order) -> Any:
        argv = wrapped(order.argv, limit_s=order.limit_s, takes_input=order.stdin is not None)
        line = command_line(argv)
        if (size := len(line.encode())) > COMMAND_LIMIT_BYTES:
            limit = f"expected at most {COMMAND_LIMIT_BYTES}: send it on stdin"
            raise ValueError(f"a command of {size} bytes, {limit}")
        channel = self._open_session(order)
        try:
            channel.exec_command(line)
        except BaseException:
            channel.close()
            raise
        return channel

    def _open_session(self, order: Order) -> Any:
        """A channel for one command; waits where the server allows fewer than we try."""
        give_up = time.monotonic() + min(order.limit_s or _SESSION_WAIT_S, _SESSION_WAIT_S)
        while True:
            transport = self._transport()
            try:
                # One at a time: paramiko keeps one exception for all who open a channel.
                with self._opening:
                    return transport.open_session(timeout=CONNECT_TIMEOUT_S)
            except paramiko.SSHException:
                if not transport.is_active() or time.monotonic() > give_up:
                    raise
            time.sleep(_SESSION_RETRY_S)

    def _transport(self) -> Any:
        """The live transport; opened again where it is dead."""
        with self._lock:
            if self._closed:
                raise ConnectionLostError(self.name, "the connection was closed")
            if self._hops and self._hops[-1].is_connected:
                return self._hops[-1].transport
            _close_all(self._hops)
            self._hops = _open_chain((*self._target.jumps, self._target), self._known_hosts)
            return self._hops[-1].transport


def fetch_host_key(target: Target, *, known_hosts: Path) -> HostKey:
    """Ask a server for its host key without offering it anything.

    known_hosts: our own file; jump hosts on the way are checked against it.

    Raises:
        UnreachableError: no answer.
        HostKeyError, AuthenticationError: a jump host on the way.
    """
    hops = _open_chain(target.jumps, known_hosts)
    try:
        sock = _socket_to(target, hops[-1] if hops else None)
        transport: Any = None
        try:
            transport = paramiko.Transport(sock)
            transport.start_client(timeout=CONNECT_TIMEOUT_S)
            key = transport.get_remote_server_key()
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise unreachable(target, error) from error
        finally:
            (transport or sock).close()
    finally:
        _close_all(hops)
    return host_key(target.place, key.get_name(), key.asbytes())


def _open_chain(targets: Sequence[Target], known_hosts: Path) -> list[Any]:
    """Connections to the targets, each through the one before it."""
    hops: list[Any] = []
    try:
        for target in targets:
            hops.append(_open_one(target, hops[-1] if hops else None, known_hosts))
    except BaseException:
        _close_all(hops)
        raise
    return hops


def _close_all(hops: list[Any]) -> None:
    while hops:
        hops.pop().client.close()


def _open_one(target: Target, through: Any, known_hosts: Path) -> Any:
    sock = _socket_to(target, through)
    keys = _Keys(target)
    connection = fabric.Connection(
        target.host,
        user=target.user,
        port=target.port,
        config=fabric.Config(lazy=True, overrides={"load_ssh_configs": False}),
        connect_timeout=CONNECT_TIMEOUT_S,
        connect_kwargs={
            "sock": sock,
            "auth_strategy": keys,
            "auth_timeout": CONNECT_TIMEOUT_S,
            "channel_timeout": CONNECT_TIMEOUT_S,
        },
    )
    client = connection.client
    try:
        _load_host_keys(client, target, known_hosts)
        connection.open()
    except paramiko.BadHostKeyException as error:
        raise changed_key(
            target,
            recorded=_described(target, error.expected_key),
            shown=_described(target, error.key),
        ) from error
    except paramiko.AuthenticationException as error:
        raise refused_keys(target, keys.offered, keys.unusable, str(error)) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        if keys.offered:
            raise refused_keys(target, keys.offered, keys.unusable, str(error)) from error
        raise unreachable(target, error) from error
    finally:
        if not connection.is_connected:
            client.close()
            sock.close()
    return connection


def _socket_to(target: Target, through: Any) -> Any:
    """A byte stream to a server: direct, through a jump host, or through a ProxyCommand."""
    try:
        if through is not None:
            return through.transport.open_channel(
                "direct-tcpip", (target.host, target.port), ("", 0), timeout=CONNECT_TIMEOUT_S
            )
        if target.proxy_command is not None:
            return PipedSocket(target.proxy_command)
        return open_socket(target.host, target.port, timeout_s=CONNECT_TIMEOUT_S)
    except (paramiko.SSHException, OSError) as error:
        raise unreachable(target, error) from error


def _load_host_keys(client: Any, target: Target, known_hosts: Path) -> None:
    # paramiko asks the "system" keys first and the others only where those know nothing.
    readers = [(client.load_system_host_keys, known_hosts)]
    readers += [(client.load_host_keys, path) for path in target.known_hosts]
    for read, path in readers:
        if not path.is_file():
            continue
        try:
            read(str(path))
        except (OSError, ValueError, paramiko.hostkeys.InvalidHostKey) as error:
            raise ConfigError(
                f"cannot read host keys of {path}: {error}", hint=f"ssh-keygen -lf {path}"
            ) from error
    client.set_missing_host_key_policy(_RefuseUnknown(target))


class _RefuseUnknown(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """Refuses with the fingerprint instead of accepting whatever answers."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        raise unknown_key(self._target, _described(self._target, key))


class _Keys:
    """Offers keys as ``ssh`` in batch mode does: key files, then the agent, never a password."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.offered: list[str] = []
        self.unusable: list[str] = []

    def authenticate(self, transport: Any) -> Any:
        """Try key after key; paramiko calls this when the host key has been accepted."""
        last: Exception = paramiko.AuthenticationException("no key to offer")
        for label, key in self._candidates():
            self.offered.append(f"{label} ({key.get_name()} {key.fingerprint})")
            try:
                return transport.auth_publickey(self._target.user, key)
            except paramiko.AuthenticationException as error:
                last = error
        raise last

    def _candidates(self) -> Iterator[tuple[str, Any]]:
        locked: list[bytes] = []
        for path in self._target.identity_files:
            if not path.is_file():
                continue
            try:
                yield str(path), paramiko.PKey.from_path(path)
            except (TypeError, paramiko.PasswordRequiredException):
                self.unusable.append(f"{path} (needs a passphrase: ssh-add {path})")
                locked += public_blobs(path)
            except (OSError, ValueError, paramiko.SSHException, paramiko.UnknownKeyType) as error:
                self.unusable.append(f"{path} ({error})")
        for key in self._agent_keys() if self._target.use_agent or locked else ():
            # A key that was named explicitly may come from the agent, but no other one.
            if self._target.use_agent or key.asbytes() in locked:
                yield f"agent key {key.comment or 'without comment'}", key

    def _agent_keys(self) -> Iterator[Any]:
        agent = None
        try:
            agent = paramiko.Agent()
            yield from agent.get_keys()
        except (OSError, paramiko.SSHException) as error:
            self.unusable.append(f"agent ({error})")
        finally:
            if agent is not None:
                agent.close()


def _described(target: Target, key: Any) -> HostKey:
    return host_key(target.place, key.get_name(), key.asbytes())


@contextlib.contextmanager
def _ended(channel: Any) -> Iterator[None]:
    """Leave no command behind: ask sshd to signal it, then close, which cuts its lifeline."""
    try:
        yield
    finally:
        if not channel.status_event.is_set():
            message = paramiko.Message()
            message.add_byte(bytes([paramiko.common.MSG_CHANNEL_REQUEST]))
            message.add_int(channel.remote_chanid)
            message.add_string("signal")
            message.add_boolean(False)
            message.add_string("TERM")
            with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                channel.transport._send_user_message(message)
        channel.close()


def _is_alive(transport: Any) -> bool:
    """Whether the connection still opens channels."""
    if not transport.is_active():
        return False
    try:
        transport.open_session(timeout=_PROBE_S).close()
    except paramiko.ChannelException:
        # The server answered, if only to refuse.
        return True
    except (paramiko.SSHException, EOFError, OSError):
        return False
    return True
