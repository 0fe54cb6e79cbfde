"""NCCL settings, library and images: what an image or a profile brings along."""

from __future__ import annotations

from sparkserve.checks.check import Check

CHECKS: tuple[Check, ...] = ()
