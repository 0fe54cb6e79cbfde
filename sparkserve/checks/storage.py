"""Disks, NFS, the files of a checkpoint, where packed rows and caches lie."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.disks import DISKS
from sparkserve.checks.nfs import NFS
from sparkserve.checks.scene import Scene
from sparkserve.facts.containers import Containers
from sparkserve.facts.environment import Environment
from sparkserve.facts.filesystems import is_below
from sparkserve.facts.logs import EngineLog
from sparkserve.facts.rendered import RenderedArgv
from sparkserve.facts.tools import FileDigests
from sparkserve.facts.weights import (
    BrokenLinks,
    CheckpointIndex,
    ListedFile,
    Listing,
    PartialFiles,
    ShardHeaders,
)
from sparkserve.units import format_bytes

_CACHES = ("TRITON_CACHE_DIR", "TILELANG_CACHE_DIR")
_B12X_CACHE = re.compile(r"B12X_\w*CACHE\w*")
_ANY_CACHE = re.compile(r"\w*(?:CACHE_DIR|CACHE_PATH|CACHE_HOME|WORKSPACE_BASE)\w*")
_MODEL_PLACE = re.compile(r"/(?:\S*/)?(?:models?|weights|checkpoints?|ckpts?|w)(?:/\S*)?")


def _missing(scene: Scene) -> Iterator[Judgement]:
    indexed = {name for _, index, _ in scene.seen(CheckpointIndex) for name in index.shards}
    if not indexed:
        return
    for place, listing, _ in scene.seen(Listing):
        sizes = {one.name.rpartition("/")[2]: one.size_bytes for one in listing.files}
        if not any(n.endswith(".safetensors") or n == "config.json" for n in sizes):
            continue
        absent = sorted(indexed - set(sizes))
        empty = sorted(name for name in indexed if sizes.get(name) == 0)
        if absent or empty:
            told = [f"{name} missing" for name in absent[:5]]
            told += [f"{name} is empty" for name in empty[:5]]
            more = len(absent) + len(empty) - len(told)
            yield Judgement(
                place, "fail",
                observed="; ".join(told) + (f"; and {more} more" if more > 0 else "")
                + f" ({len(absent)} of {len(indexed)} that the index names are not there)",
                expected=f"all {len(indexed)} files of model.safetensors.index.json",
                fix=f"copy {(absent or empty)[0]} to {place or 'the node'} again, then compare "
                "sizes with the source",
            )  # fmt: skip
        else:
            yield passed(place, f"all {len(indexed)} files of the index are there")


def _cache(scene: Scene) -> Iterator[Judgement]:
    places = dict.fromkeys(
        [place for place, _ in scene.each(BrokenLinks)]
        + [place for place, _ in scene.each(PartialFiles)]
        + [place for place, _, _ in scene.seen(Listing) if _listed_parts(scene, place)]
    )
    for place in places:
        links, partial = scene.of(place, BrokenLinks), scene.of(place, PartialFiles)
        broken = links.paths if links else ()
        unfinished = [*(partial.files if partial else ()), *_listed_parts(scene, place)]
        told = []
        if broken:
            told.append(
                f"{len(broken)} broken link{'s' * (len(broken) > 1)}: {', '.join(broken[:3])}"
            )
        if unfinished:
            shown = ", ".join(
                one.name + (f" ({format_bytes(one.size_bytes)})" if one.size_bytes else "")
                for one in unfinished[:3]
            )
            told.append(f"{len(unfinished)} partial blob{'s' * (len(unfinished) > 1)}: {shown}")
        if told:
            yield Judgement(place, "fail", observed="; ".join(told), expected="neither")
        else:
            yield passed(place, "no broken link and no partial blob")


def _listed_parts(scene: Scene, place: str | None) -> list[ListedFile]:
    return [
        one
        for where, listing, _ in scene.seen(Listing)
        if where == place
        for one in listing.files
        if one.name.endswith(".incomplete")
    ]


def _headers(scene: Scene) -> Iterator[Judgement]:
    for place, fact in scene.each(ShardHeaders):
        bad = [(one.name, fault) for one in fact.headers if (fault := one.fault)]
        for name, fault in bad:
            yield Judgement(
                place, "fail", observed=f"{name}: {fault}",
                expected="2 <= header length <= size - 8, and the size that the header declares",
                fix=f"copy {name} again and compare its sha256; keep the model mounted read-only",
            )  # fmt: skip
        if not bad:
            yield passed(place, f"{len(fact.headers)} headers are in order")


def _read_only(scene: Scene) -> Iterator[Judgement]:
    named = list(_model_paths(scene))
    for place, fact in scene.each(Containers):
        for container in fact.containers:
            for mount in container.mounts or ():
                holds = any(is_below(path, mount.destination) for path in named)
                if mount.destination == "/" or mount.writable is None:
                    continue
                if not holds and not _MODEL_PLACE.fullmatch(mount.destination):
                    continue
                if mount.writable:
                    yield Judgement(
                        place, "fail",
                        observed=f"the model mount {mount.source} at {mount.destination} is "
                        "writable (RW true)",
                        expected="read-only (RW false)",
                        fix=f"-v {mount.source}:{mount.destination}:ro",
                    )  # fmt: skip
                else:
                    yield passed(place, f"{mount.destination} is read-only")


def _model_paths(scene: Scene) -> Iterator[str]:
    """Paths inside a container that a log or a command line names as the model's."""
    for _, log, _ in scene.seen(EngineLog):
        for line in log.lines:
            if found := re.search(r"Corrupted safetensors file detected: (/\S+)", line.text):
                yield found[1]
    lines = [argv.argv for _, argv, _ in scene.seen(RenderedArgv)]
    lines += [
        container.args or ()
        for _, fact, _ in scene.seen(Containers)
        for container in fact.containers
    ]
    for words in lines:
        for flag, value in pairwise(words):
            if flag in ("--model-path", "--model") and value.startswith("/"):
                yield value


def _jit_caches(scene: Scene) -> Iterator[Judgement]:
    for place, environment in scene.each(Environment):
        containers = scene.near(place, Containers)
        mounts = [
            mount.destination
            for container in (containers.containers if containers else ())
            for mount in container.mounts or ()
        ]
        told = [name for name in environment.variables if _ANY_CACHE.fullmatch(name)]
        if not mounts or not told:
            continue
        faults = [
            f"{name}={environment.variables[name]} is not on a mount"
            for name in told
            if name not in ("HF_HOME", "HF_HUB_CACHE", "TRANSFORMERS_CACHE", "HF_DATASETS_CACHE")
            and not any(is_below(environment.variables[name], one) for one in mounts)
        ]
        faults += [f"{name} is unset" for name in _CACHES if name not in told]
        if not any(_B12X_CACHE.fullmatch(name) for name in told):
            faults.append("the B12X cache (B12X_COMPILE_CACHE_DIR) is unset")
        if faults:
            yield Judgement(
                place, "fail", observed="; ".join(faults),
                expected=f"every cache of compiled kernels below a mount ({', '.join(mounts)})",
                fix="set the variables to a folder mounted from the node's disk, and warm up",
            )  # fmt: skip
        else:
            yield passed(place, f"{len(told)} caches lie on mounts")


def _equal_files(scene: Scene) -> Iterator[Judgement]:
    known = [(place, fact) for place, fact in scene.each(FileDigests) if place is not None]
    if len(known) < 2:
        return
    names = dict.fromkeys(
        path.rpartition("/")[2] for _, fact in known for path in (*fact.sha256, *fact.absent)
    )
    for name in names:
        found = {
            place: next((d for p, d in fact.sha256.items() if p.rpartition("/")[2] == name), None)
            for place, fact in known
        }
        if len(set(found.values())) > 1:
            shown = ", ".join(f"{p} {d[:12] if d else 'has none'}" for p, d in found.items())
            yield Judgement(
                None, "fail", observed=f"{name} differs: {shown}",
                expected="the same bytes on every rank, or none on all",
                fix=f"copy {name} from one node to all others",
            )  # fmt: skip
        else:
            yield passed(None, f"{name} is equal on {len(found)} nodes")


CHECKS: tuple[Check, ...] = (
    Check(
        "WEIGHTS.INDEX", "STO_MISSING_SHARD", "Every file of the index is there",
        ("doctor", "prepare"), "error", "hardware", (CheckpointIndex, Listing), _missing,
        why="a copy that was cut off leaves a folder that looks complete",
        fix="copy the missing files again",
        symptom="The load ends after minutes with a missing tensor or file, on one node.",
        text_only="WEIGHTS.COMPLETE reads names, sizes and headers on a live node",
    ),
    Check(
        "WEIGHTS.CACHE", "STO_CACHE_LOOKS_COMPLETE", "The download is finished",
        ("doctor", "prepare"), "error", "hardware", (BrokenLinks, PartialFiles, Listing), _cache,
        why="a snapshot holds links to blobs; a link to a blob that never came counts as a file",
        fix="hf download REPO --revision REVISION",
        symptom="The folder lists every shard, and the load says that one does not exist.",
    ),
    Check(
        "WEIGHTS.HEADER", "STO_CORRUPT_WIPES_MODEL", "Headers of the shards can be read",
        ("doctor", "launch"), "error", "hardware", (ShardHeaders,), _headers,
        why="an engine that finds a corrupt file may delete the model's cache to load it anew",
        fix="copy the file again and compare its sha256",
        symptom="'Corrupted safetensors file detected', then hundreds of gigabytes are gone.",
        text_only="WEIGHTS.COMPLETE reads names, sizes and headers on a live node",
    ),
    Check(
        "WEIGHTS.READ_ONLY", "STO_CORRUPT_WIPES_MODEL", "The engine may not write to the model",
        ("doctor", "launch"), "error", "config", (Containers,), _read_only,
        why="what an engine can write it can delete, as on a header that it cannot read",
        fix="mount the model with :ro",
        symptom="The model's folder is empty after a failed start.",
    ),
    Check(
        "CTR.JIT_CACHES", "ENG_JIT_MIDSERVE", "Compiled kernels outlive the container", ("doctor",),
        "warning", "config", (Environment, Containers), _jit_caches,
        why="a cache inside the container is empty at every start, so kernels are compiled while "
        "requests wait, and other ranks may time out",
        fix="set TRITON_CACHE_DIR, TILELANG_CACHE_DIR and B12X_COMPILE_CACHE_DIR below a mount",
        symptom="The first requests after each start take minutes.",
    ),
    Check(
        "ARTIFACT.EQUAL", "STO_ARTIFACT_SKEW", "Files that ranks share are the same", ("doctor",),
        "error", "config", (FileDigests,), _equal_files,
        why="ranks that draft or route by different tables wait for each other for ever or answer "
        "garbage",
        fix="copy the file from one node to all others",
        symptom="Acceptance differs between ranks, or a collective never ends.",
    ),
    *DISKS,
    *NFS,
)  # fmt: skip
