"""Images: built for this machine, the same on all nodes, with tools and flags that fit."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.scene import Scene
from sparkserve.facts.containers import Image, Images
from sparkserve.facts.gpu_kinds import GpuDriver
from sparkserve.facts.rendered import Pins, RenderedArgv
from sparkserve.facts.tools import EngineFlags, Packages, Toolchain, normalised

_ARM = ("arm64", "aarch64")
_PTXAS = (13, 0)
"""First release whose ptxas knows sm_121a (case B40)."""
_IMAGE_RUN = "an image is not run to look into it: that would load the node"


def _architecture(scene: Scene) -> Iterator[Judgement]:
    for place, fact in scene.each(Images):
        for image in fact.images:
            if image.architecture is None or not _matters(scene, image):
                continue
            shown = f"{image.os or 'linux'}/{image.architecture}"
            if image.architecture in _ARM:
                yield passed(place, f"{image.reference or image.id}: {shown}")
            else:
                name = image.reference or image.id or "the image"
                yield Judgement(
                    place, "fail", observed=f"{name} is {shown}", expected="linux/arm64",
                    fix=f"docker pull --platform linux/arm64 {image.reference or 'IMAGE'}",
                )  # fmt: skip


def _wanted(scene: Scene) -> str | None:
    """Reference of the image that the profile pins."""
    wish = scene.wish
    return wish.engine.image if wish is not None and wish.engine.runtime == "container" else None


def _matters(scene: Scene, image: Image) -> bool:
    """Whether an image is the wanted one; of pasted texts every image is."""
    if scene.wish is None:
        return True
    digest = (_wanted(scene) or "").partition("@")[2]
    return bool(digest) and any(one.endswith(digest) for one in image.digests)


def _pinned(scene: Scene) -> Iterator[Judgement]:
    wanted = _wanted(scene)
    ids: dict[str, dict[str, str]] = {}
    for place, fact in scene.each(Images):
        name, _, digest = (wanted or "").partition("@")
        found = [one for one in fact.images if wanted and _matters(scene, one)]
        if wanted and not found:
            yield Judgement(
                place, "fail", code="CTR_IMAGE_MISSING", expected=wanted,
                observed=f"{name} with {digest} is not there", fix=f"docker pull {wanted}",
            )  # fmt: skip
        elif wanted:
            yield passed(place, f"{name} is the pinned one")
        for missing in fact.absent:
            yield Judgement(
                place, "fail", code="CTR_IMAGE_MISSING", observed=f"no image {missing}",
                expected="the image on every node",
                fix=f"docker save {missing} | ssh {place or 'NODE'} docker load",
            )  # fmt: skip
        for one in fact.images:
            if one.reference and one.id and place is not None and scene.wish is None:
                ids.setdefault(one.reference, {})[place] = one.id
    for reference, by_place in ids.items():
        if len({_short(one) for one in by_place.values()}) > 1:
            shown = ", ".join(f"{place} {_short(one)}" for place, one in by_place.items())
            yield Judgement(
                None, "fail", observed=f"{reference}: {shown}", expected="one id on all nodes",
                fix=f"docker save {reference} | ssh NODE docker load, or pin it by digest",
            )  # fmt: skip


def _short(image_id: str) -> str:
    return image_id.removeprefix("sha256:")[:12]


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,6}", text))


def _ptxas(scene: Scene) -> Iterator[Judgement]:
    for place, tools in scene.each(Toolchain):
        if tools.ptxas is None:
            continue
        if _release(tools.ptxas) < _PTXAS:
            yield Judgement(
                place, "fail", observed=f"ptxas of release {tools.ptxas} < 13.0",
                expected="release 13.0 or newer",
                fix="TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas, of a toolkit >= 13.0",
            )  # fmt: skip
        else:
            yield passed(place, f"ptxas {tools.ptxas}")


def _toolkit(scene: Scene) -> Iterator[Judgement]:
    drivers = [(place, fact.cuda) for place, fact in scene.each(GpuDriver) if fact.cuda]
    if not drivers:
        return
    # The oldest driver decides: the same image runs on every node.
    host, cuda = min(drivers, key=lambda one: _release(one[1]))
    for place, tools in scene.each(Toolchain):
        if tools.nvcc is None:
            continue
        if _release(tools.nvcc) > _release(cuda):
            yield Judgement(
                place, "fail", observed=f"toolkit {tools.nvcc} > {cuda}, which the driver"
                f"{f' of {host}' if host else ''} runs",
                expected=f"a toolkit of CUDA {cuda} or older",
                fix=f"use an image built with CUDA {cuda}, or a newer driver",
            )  # fmt: skip
        else:
            yield passed(place, f"toolkit {tools.nvcc}, driver {cuda}")


def _flags(scene: Scene) -> Iterator[Judgement]:
    known = {flag for _, fact, _ in scene.seen(EngineFlags) for flag in fact.flags}
    if not known:
        return
    for place, argv, _ in scene.seen(RenderedArgv):
        unknown = [flag for flag in argv.flags if flag not in known]
        if unknown:
            yield Judgement(
                place, "fail", observed=f"{', '.join(unknown)}: not among the {len(known)} flags "
                "of this image's engine",
                expected="flags that `--help` lists",
                fix="use an image of the version that the profile was written for",
            )  # fmt: skip
        else:
            yield passed(place, f"all {len(argv.flags)} flags are known")


def _versions(scene: Scene) -> Iterator[Judgement]:
    for place, fact in scene.each(Packages):
        for _, pins, _ in scene.seen(Pins):
            wrong = []
            for pin in pins.pins:
                have = fact.versions.get(normalised(pin.name))
                if have is None:
                    wrong.append(f"{pin.name} is missing, wanted {pin.specifier}")
                elif not satisfies(have, pin.specifier):
                    wrong.append(f"{pin.name} {have}, wanted {pin.specifier}")
            if wrong:
                yield Judgement(
                    place, "fail", observed="; ".join(wrong), expected="the profile's pins",
                    fix="rebuild the image with the pinned versions",
                )  # fmt: skip
            else:
                yield passed(place, f"{len(pins.pins)} pins are met")


def satisfies(version: str, specifier: str) -> bool:
    """Whether a version meets a specifier such as ``>=0.6.14,<1``.

    Only the numbers of the release count, and a local part (``+cu130``) where ``==`` names one;
    a pre-release counts as its release.
    """
    have = _release(re.split(r"[+a-z]|\.(?:dev|post)", version)[0])
    for clause in specifier.split(","):
        found = re.fullmatch(r"(===|==|!=|>=|<=|~=|>|<)\s*([\w.*+!-]+)", clause.strip())
        if found is None:
            continue
        want = _release(re.split(r"[+a-z]|\.(?:dev|post)", found[2])[0])
        width = max(len(have), len(want))
        left, right = (one + (0,) * (width - len(one)) for one in (have, want))
        same = have[: len(want)] == want if found[2].endswith("*") else left == right
        if "+" in found[2]:
            same = version == found[2]
        holds = {
            "==": same, "===": version == found[2], "!=": not same, ">=": left >= right,
            "<=": left <= right, ">": left > right, "<": left < right,
            "~=": left >= right and have[: len(want) - 1] == want[:-1],
        }  # fmt: skip
        if not holds[found[1]]:
            return False
    return True


IMAGES: tuple[Check, ...] = (
    Check(
        "IMAGE.ARCH", "CTR_WRONG_ARCH", "Images are built for this processor",
        ("prepare", "doctor"), "error", "config", (Images,), _architecture,
        why="a Spark is arm64; an image for amd64 cannot run there",
        fix="docker pull --platform linux/arm64 IMAGE",
        symptom="'exec format error', and the container ends at once. Where the image is right, "
        "look at the runtime and at the script's first line.",
    ),
    Check(
        "IMAGE.SAME", "CTR_IMAGE_SKEW", "Every node has the same pinned image", ("doctor",),
        "error", "config", (Images,), _pinned,
        why="a tag moves; ranks of different builds hang or answer garbage",
        fix="pin the image by digest and pull it on every node",
        symptom="It worked yesterday; today one rank differs.",
        also=("CTR_IMAGE_MISSING",),
    ),
    Check(
        "CTR.PTXAS", "CTR_PTXAS_SM121", "The image can assemble for GB10", ("prepare", "doctor"),
        "error", "config", (Toolchain,), _ptxas,
        why="Triton calls the ptxas that it brings, and an old one does not know sm_121a",
        fix="set TRITON_PTXAS_PATH to a ptxas of release 13.0 or newer",
        symptom="\"Value 'sm_121a' is not defined for option 'gpu-name'\".",
        text_only=_IMAGE_RUN,
    ),
    Check(
        "CTR.TOOLKIT", "CTR_TOOLKIT_NEWER", "The image's CUDA is not newer than the driver's",
        ("prepare", "watch"), "warning", "config", (Toolchain,), _toolkit,
        why="kernels that are compiled at run time become PTX that the driver does not know",
        fix="use an image of the driver's CUDA version, or a newer driver",
        symptom="'UnsupportedPtxVersion' or CUDA error 222 at the first compiled kernel.",
        text_only=_IMAGE_RUN,
    ),
    Check(
        "IMAGE.FLAGS", "ENG_UNKNOWN_FLAG", "The engine knows every flag", ("prepare",), "error",
        "config", (EngineFlags,), _flags,
        why="another version of the engine names or lacks it",
        fix="compare the flags with the image's own --help",
        symptom="'unrecognized arguments' and the end of every rank.",
        text_only=_IMAGE_RUN,
    ),
    Check(
        "IMAGE.LIBRARIES", "ENG_LIB_SKEW", "Libraries are those that the profile pins",
        ("prepare",), "error", "config", (Packages,), _versions,
        why="kernels are written for one version of these libraries",
        fix="rebuild the image with the pinned versions",
        symptom="Import errors, missing arguments, or slow fallbacks after a rebuild of the image.",
        text_only=_IMAGE_RUN,
    ),
)  # fmt: skip
