"""A hook registry with the real one's interface and its habit of swallowing errors."""

import enum
import functools
import logging
import os
import pkgutil
from typing import ClassVar

logger = logging.getLogger(__name__)


class HookType(enum.Enum):
    AROUND = "around"
    REPLACE = "replace"


class HookRegistry:
    _hooks: ClassVar[dict] = {}
    _patched: ClassVar[set] = set()

    @classmethod
    def register(cls, target, hook, hook_type):
        cls._hooks.setdefault(target, []).append((hook_type, hook))

    @classmethod
    def apply_hooks(cls):
        for target, hooks in cls._hooks.items():
            if target in cls._patched:
                continue
            try:
                if os.environ.get("FAKE_BROKEN_HOOKS"):
                    raise RuntimeError("this registry applies nothing")
                cls._apply(target, hooks)
                cls._patched.add(target)
            except Exception:
                logger.exception("Failed to apply hooks to %s", target)

    @classmethod
    def _apply(cls, target, hooks):
        path, name = target.rsplit(".", 1)
        parent = pkgutil.resolve_name(path)
        for hook_type, hook in hooks:
            original = getattr(parent, name)
            if hook_type is HookType.AROUND:
                setattr(parent, name, functools.partialmethod(_around, original, hook))
            else:
                setattr(parent, name, hook)


def _around(self, original, hook, *args, **kwargs):
    return hook(original, self, *args, **kwargs)
