"""Checks of an operation's arguments: every message names the tensor and both values."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class KernelArgumentError(ValueError):
    """A tensor or number that an operation cannot take."""


def require_shape(name: str, tensor: torch.Tensor, expected: tuple[int | None, ...]) -> None:
    """Refuse another shape; None stands for any length.

    Raises:
        KernelArgumentError: naming the tensor, its shape and the expected one.
    """
    shape = tuple(tensor.shape)
    if len(shape) != len(expected) or any(
        want is not None and have != want for have, want in zip(shape, expected, strict=True)
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in expected)
        have = ", ".join(map(str, shape))
        raise KernelArgumentError(f"{name}: shape [{have}], expected [{wanted}]")


def require_dtype(name: str, tensor: torch.Tensor, *expected: torch.dtype) -> None:
    """Refuse another dtype.

    Raises:
        KernelArgumentError: naming the tensor, its dtype and the expected ones.
    """
    if tensor.dtype not in expected:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in expected)
        have = str(tensor.dtype).removeprefix("torch.")
        raise KernelArgumentError(f"{name}: dtype {have}, expected {wanted}")


def require_contiguous_rows(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor whose last axis has gaps; rows may lie apart.

    Raises:
        KernelArgumentError: naming the tensor and its strides.
    """
    if tensor.numel() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise KernelArgumentError(
            f"{name}: strides {list(tensor.stride())}, expected 1 along the last axis"
        )


def require_rows_apart(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor to be written whose rows share memory, as those of an expanded one do.

    Raises:
        KernelArgumentError: naming the tensor, its row stride and the size of a row.
    """
    if len(tensor) > 1 and tensor.stride(0) < tensor[0].numel():
        raise KernelArgumentError(
            f"{name}: row stride {tensor.stride(0)}, expected at least {tensor[0].numel()}"
        )


def require_contiguous(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor with gaps.

    Raises:
        KernelArgumentError: naming the tensor and its strides.
    """
    if not tensor.is_contiguous():
        raise KernelArgumentError(
            f"{name}: strides {list(tensor.stride())} for shape {list(tensor.shape)}, expected "
            f"a contiguous tensor"
        )


def require_same_device(**tensors: torch.Tensor) -> None:
    """Refuse tensors on different devices.

    Raises:
        KernelArgumentError: naming the first two that differ.
    """
    (first, reference), *rest = tensors.items()
    for name, tensor in rest:
        if tensor.device != reference.device:
            raise KernelArgumentError(
                f"{name} on {tensor.device}, expected {reference.device} as {first}"
            )


def require_multiple(name: str, value: int, of: int) -> None:
    """Refuse a length that is no multiple.

    Raises:
        KernelArgumentError: naming the length and the number it must be a multiple of.
    """
    if value % of:
        raise KernelArgumentError(f"{name} = {value}, expected a multiple of {of}")


def at_most(name: str, count: int, hint_name: str, hint: int | None) -> int:
    """A hint that chooses a launch shape, or the count itself where none is given.

    Raises:
        KernelArgumentError: more than the hint says; naming both.
    """
    if hint is None:
        return count
    if count > hint:
        raise KernelArgumentError(f"{name} has {count} rows, expected at most {hint_name} = {hint}")
    return hint
