"""NFS: what is exported, to whom, whether its clients reach it and find their paths."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.scene import Scene
from sparkserve.facts.exports import Export, Exports, Modes, NfsService, Volume
from sparkserve.facts.filesystems import Filesystems, PathKind, PathKinds, is_below
from sparkserve.facts.logs import EngineLog
from sparkserve.facts.rendered import ProfileValue
from sparkserve.facts.routes import Address, Addresses, Routes
from sparkserve.facts.weights import Listing

_NOT_EXPORTABLE = ("overlay", "overlayfs", "tmpfs", "ramfs", "aufs", "fuse-overlayfs")
_WORLD = ("*", "0.0.0.0/0", "0.0.0.0/0.0.0.0", "::/0", "everyone", "(everyone)", "<world>")
_SECRET = re.compile(
    r"(?:^|/)(?:token|stored_tokens|\.netrc|id_(?:rsa|ed25519|ecdsa)|\.env|\S+\.pem)$"
)


def _exportable(scene: Scene) -> Iterator[Judgement]:
    exported = {one.path for _, fact, _ in scene.seen(Exports) for one in fact.exports}
    refused: dict[str, str | None] = {}
    for place, log, _ in scene.seen(EngineLog):
        for line in log.lines:
            if found := re.search(r"(?<!\S)(/\S{0,300}) does not support NFS export", line.text):
                refused.setdefault(found[1], place)
    kinds = [(place, one) for place, fact, _ in scene.seen(PathKinds) for one in fact.kinds]
    kinds += [
        (place, PathKind(path=one.path, kind=one.kind))
        for place, mounted, _ in scene.seen(Filesystems)
        for one in mounted.filesystems
        if one.path is not None and one.kind is not None
    ]
    for place, one in kinds:
        if one.path:
            # A container's own root is an overlay everywhere; only exported folders matter.
            named = one.path in exported or re.search(r"(?i)export|nfs", f"{one.path} {place}")
            if one.path not in refused and not named:
                continue
            refused.pop(one.path, None)
            if one.kind in _NOT_EXPORTABLE:
                yield _unexportable(place, one.path, f"{one.path} is on {one.kind}")
            else:
                yield passed(place, f"{one.path} is on {one.kind}")
    for path, place in refused.items():
        yield _unexportable(place, path, f"the kernel refuses to export {path}")


def _unexportable(place: str | None, path: str, observed: str) -> Judgement:
    return Judgement(
        place, "fail", observed=observed, expected="a folder of a real disk, such as ext4 or xfs",
        fix=f"mount the node's own folder into the exporter: -v /data/models:{path}:ro",
    )  # fmt: skip


def _drift(scene: Scene) -> Iterator[Judgement]:
    offers = [(place, one) for place, fact, _ in scene.seen(Exports) for one in fact.exports]
    if not offers:
        return
    for place, volume, _ in scene.seen(Volume):
        if volume.device is None or "nfs" not in (volume.kind or "nfs"):
            continue
        path = volume.device.partition(":")[2] or volume.device
        fault = _path_fault(scene, path, offers, pseudo=not _is_v3(volume.options))
        if fault is None:
            yield passed(place, f"{volume.device} is exported")
        else:
            shown = ", ".join(one.path for _, one in offers)
            yield Judgement(
                place, "fail",
                observed=f"volume {volume.name or ''} mounts :{path}, {fault}".replace("  ", " "),
                expected=f"a path that the server offers: {shown}",
                fix=f"docker volume rm {volume.name or 'VOLUME'}; make it anew with device=:/ or "
                "with a folder that is there",
            )  # fmt: skip


def _is_v3(options: tuple[str, ...]) -> bool:
    return any(re.fullmatch(r"(?:nfs)?vers=[23].*", option) for option in options)


def _path_fault(
    scene: Scene, path: str, offers: list[tuple[str | None, Export]], *, pseudo: bool
) -> str | None:
    """What is wrong with a path that a client asks for; None where nothing is known to be.

    With NFS 4 the folder that is exported with fsid=0 is the client's /.
    """
    path = "/" + path.strip("/")
    root = next(
        (one for _, one in offers if pseudo and {"fsid=0", "fsid=root"} & set(one.options)), None
    )
    full = path if root is None else root.path.rstrip("/") + path if path != "/" else root.path
    if any(full.rstrip("/") == one.path.rstrip("/") for _, one in offers):
        return None
    if any(is_below(path, one.path) for _, one in offers) and root is None:
        return _unlisted(scene, path, offers)
    if root is None:
        return "which is below no exported folder"
    fault = _unlisted(scene, full, offers)
    return f"which does not exist under the export root {root.path}" if fault else None


def _unlisted(scene: Scene, full: str, offers: list[tuple[str | None, Export]]) -> str | None:
    """Whether a listing of the exported folder lacks the first step below it."""
    for place, one in offers:
        if not is_below(full, one.path):
            continue
        step = full[len(one.path.rstrip("/")) + 1 :].split("/")[0]
        for where, listing, _ in scene.seen(Listing):
            here = place is None or where is None or scene.same_place(place, where)
            names = {name.name.rstrip("/").rpartition("/")[2] for name in listing.files}
            if here and step and step not in names:
                return f"which is not in {one.path}"
    return None


def _reachable(scene: Scene) -> Iterator[Judgement]:
    for place, server in _servers(scene):
        known = scene.near(place, Addresses)
        if known is None or not known.addresses:
            continue
        where = place or next((p for p, _, _ in scene.seen(Addresses)), None)
        connected = [one for one in known.addresses if one.is_ipv4 and _holds(one, server)]
        if connected:
            yield passed(where, f"{server} is on {connected[0].network} ({connected[0].interface})")
            continue
        routes = scene.near(place, Routes)
        via = next((r for r in routes.routes if r.destination == server), None) if routes else None
        if via is not None and via.gateway is None and via.interface is not None:
            yield passed(where, f"{server} is reached by {via.interface}")
            continue
        better = _suggested(scene, where, server, known)
        network = ipaddress.ip_interface(f"{server}/24").network
        yield Judgement(
            where, "fail",
            observed=f"{network} of the NFS server {server} is not connected to "
            f"{where or 'the node'}",
            expected="an address of the server in one of "
            + ", ".join(a.network for a in known.addresses if a.is_ipv4 and a.interface != "lo"),
            fix=f"use {better[0]}" + (f" (or {', '.join(better[1:])})" if better[1:] else "")
            if better else "use an address of the server that the node shares a network with",
        )  # fmt: skip


def _servers(scene: Scene) -> Iterator[tuple[str | None, str]]:
    """(client, address) of every NFS server that is to be used."""
    for place, value, reading in scene.seen(ProfileValue):
        about = f"{value.about} {reading.note} {reading.label}"
        address = re.search(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])", value.value)
        wanted = re.search(r"(?i)nfs|weights? server|volume", f"{about} {value.value}")
        if wanted and address and _is_address(address[0]):
            named = re.search(r"(?i)\b(?:for|on|of) ((?!the\b)[\w-]*\d[\w-]*)", about)
            yield place or (named[1] if named else None), address[0]
    for place, volume, _ in scene.seen(Volume):
        if volume.server is not None and _is_address(volume.server):
            yield place, volume.server
    for key, told in (scene.wanted.keys or {}).items():
        if re.search(r"(?i)nfs.*(?:server|addr|host)", key) and _is_address(str(told)):
            yield None, str(told)


def _is_address(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _holds(address: Address, server: str) -> bool:
    return ipaddress.ip_address(server) in ipaddress.ip_network(address.network)


def _suggested(scene: Scene, where: str | None, server: str, known: Addresses) -> list[str]:
    """Addresses of the server that the client may reach, the surest first.

    Where the server's own addresses were read they decide. Else the usual plan of a triangle is
    taken: the host part is the node's number, and a link's network holds both numbers.
    """
    mine = [one for one in known.addresses if one.is_ipv4 and one.interface != "lo"]
    for place, fact in scene.each(Addresses):
        if place != where and fact.holder(server) is not None:
            theirs = [one.address for one in fact.addresses if one.is_ipv4]
            return [a for a in theirs if any(_holds(one, a) for one in mine)]
    host = server.rpartition(".")[2]
    prefix = ".".join(server.split(".")[:2]) + "."
    likely = [one for one in mine if one.address.startswith(prefix)] or mine
    named = [one for one in likely if host in one.address.split(".")[2]]
    ordered = named if len(named) == 1 else likely
    return [one.address.rpartition(".")[0] + f".{host}" for one in ordered]


def _squash(scene: Scene) -> Iterator[Judgement]:
    for place, fact in scene.each(Exports):
        faults = []
        exports = [one for one in fact.exports if _concerns(scene, one)]
        for one in exports:
            if one.clients.lower() in _WORLD:
                faults.append(f"world export of {one.path} to {one.clients}")
            if "no_root_squash" in one.options:
                faults.append(f"no_root_squash on {one.path}")
        modes = scene.near(place, Modes)
        files = modes.modes if modes else ()
        faults += [f"{one.path} lies below the export (token inside)" for one in files
                   if _SECRET.search(one.path)]  # fmt: skip
        squashed = not any("no_root_squash" in one.options for one in exports)
        hidden = [
            one.path for one in files if not one.mode & 0o004 and not _SECRET.search(one.path)
        ]
        if hidden and squashed:
            faults.append(f"{len(hidden)} files that clients may not read: {', '.join(hidden[:3])}")
        if faults:
            yield Judgement(
                place, "fail", observed="; ".join(faults),
                expected="one network, root_squash, files that others may read, no secrets below",
            )  # fmt: skip
        elif exports:
            shown = ", ".join(f"{one.path} to {one.clients}" for one in exports)
            yield passed(place, f"{shown}, root is squashed")


def _concerns(scene: Scene, export: Export) -> bool:
    """Whether an export hands out the model; a live node may export what else its owner likes."""
    if scene.wish is None:
        return True
    path = scene.wish.model.path
    return path.startswith("/") and (is_below(path, export.path) or is_below(export.path, path))


def _answers(scene: Scene) -> Iterator[Judgement]:
    for place, service in scene.each(NfsService):
        if service.answers:
            yield passed(place, "the NFS server answers")
        else:
            yield Judgement(
                place, "fail", observed=f"no NFS server answers: {service.message}",
                expected="NFS version 4, ready and waiting",
                fix=f"on {place or 'the server'}: sudo systemctl start nfs-server, or start the "
                "exporter's container",
            )  # fmt: skip


NFS: tuple[Check, ...] = (
    Check(
        "NFS.EXPORTABLE", "CTR_NFS_EXPORT_OVERLAY", "The exported folder is on a real disk",
        ("prepare",), "error", "config", (PathKinds,), _exportable,
        why="the kernel's NFS server cannot hand out files of an overlay",
        fix="mount the model's folder of the node into the exporter's container",
        symptom="'does not support NFS export' in the exporter's log; clients get nothing.",
        text_only="the exporter is a container of its own, which doctor does not enter",
    ),
    Check(
        "NFS.PATH", "STO_NFS_PATH_DRIFT", "Volumes name a folder that is exported", ("launch",),
        "error", "config", (Volume,), _drift,
        why="a docker volume keeps the path that it was made with, whatever is exported later",
        fix="docker volume rm VOLUME and make it anew",
        symptom="'No such file or directory' when a worker's container mounts the volume.",
        text_only="volumes and exports are looked at by the launch that uses them",
    ),
    Check(
        "NFS.ROUTE", "STO_NFS_SERVER_UNREACHABLE", "Workers share a network with the NFS server",
        ("doctor",), "error", "config", (ProfileValue, Volume, Addresses), _reachable,
        why="in a triangle each pair has a network of its own, so the server has another address "
        "for each worker",
        fix="use the server's address on the network that the two share",
        symptom="The mount hangs on one worker, or weights come over the slow management network.",
        text_only="profiles of sparkserve name no NFS server",
    ),
    Check(
        "WEIGHTS.NFS", "STO_NFS_NOT_RUNNING", "The NFS server of the weights runs", ("doctor",),
        "warning", "hardware", (NfsService,), _answers,
        why="a mount of a server that does not answer hangs instead of failing",
        fix="sudo systemctl start nfs-server",
        symptom="The load of every worker stands still at its first file.",
        text_only="profiles of sparkserve name no NFS server",
    ),
    Check(
        "NFS.RIGHTS", "STO_ROOT_SQUASH_MODES", "The export gives away no more than the model",
        ("doctor",), "error", "config", (Exports, Modes), _squash,
        why="an export of the whole cache hands its token to everybody; with root_squash files of "
        "mode 600 cannot be read by the workers",
        fix="export the model's folder alone, ro,root_squash, to the fabric's network; "
        "chmod -R o+rX below it",
        symptom="'Permission denied' on the workers, or a token that others can read.",
    ),
)  # fmt: skip
