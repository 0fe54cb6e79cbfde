"""Where a kernel runs: the one question that chooses a path and a tile table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Family = Literal["spark", "hopper"]
"""``spark``: block-scaled matrix instructions (sm_12x). ``hopper``: none (sm_90), so scales are
applied by the kernel itself."""

FAMILIES: dict[int, Family] = {9: "hopper", 12: "spark"}
"""Path by the major compute capability; any other GPU is refused."""


class UnsupportedDevice(RuntimeError):
    """The tensors lie where these kernels cannot run."""


@dataclass(frozen=True)
class Target:
    """A GPU, or Triton's interpreter standing in for one."""

    capability: tuple[int, int]
    interpreted: bool = False

    @property
    def family(self) -> Family:
        """The path kernels take.

        Raises:
            UnsupportedDevice: neither sm_90 nor sm_12x.
        """
        family = FAMILIES.get(self.capability[0])
        if family is None:
            have = "{}.{}".format(*self.capability)
            raise UnsupportedDevice(
                f"compute capability {have}, expected 9.0 (Hopper) or 12.x (GB10)"
            )
        return family


SPARK = Target((12, 1))
HOPPER = Target((9, 0))


def target_of(tensor: torch.Tensor) -> Target:
    """The target of a tensor's device.

    A tensor on the CPU means the Spark's path in Triton's interpreter.

    Raises:
        UnsupportedDevice: on a CPU without the interpreter, or a GPU of another family.
    """
    if tensor.device.type == "cuda":
        return _of_gpu(tensor.device.index or 0)
    import triton

    if tensor.device.type == "cpu" and triton.knobs.runtime.interpret:
        return Target(SPARK.capability, interpreted=True)
    raise UnsupportedDevice(
        f"tensors on {tensor.device}, expected a CUDA GPU (a CPU only with TRITON_INTERPRET=1)"
    )


def supports(tensor: torch.Tensor) -> bool:
    """Whether kernels run where this tensor lies."""
    try:
        return target_of(tensor).family in FAMILIES.values()
    except UnsupportedDevice:
        return False


@lru_cache(maxsize=16)
def _of_gpu(index: int) -> Target:
    import torch

    return Target(torch.cuda.get_device_capability(index))
