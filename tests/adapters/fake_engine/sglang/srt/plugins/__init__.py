"""Loads plugins the way SGLang does: whatever exception one raises is logged and forgotten."""

import logging

from sglang.srt.plugins.hook_registry import HookRegistry

logger = logging.getLogger(__name__)


def load_plugins(*functions):
    for function in functions:
        try:
            function()
        except Exception:
            logger.exception("Failed to execute general plugin: %s", function)
    HookRegistry.apply_hooks()
