"""Where the controller keeps its files: XDG folders of the current user.

Configuration holds what people write (clusters, profiles, recorded host keys), state what runs
leave (records, events, locks), cache what can be made again.
"""

from __future__ import annotations

from pathlib import Path

import platformdirs

_APP = "sparkserve"


def config_dir() -> Path:
    """``$XDG_CONFIG_HOME/sparkserve``, by default ``~/.config/sparkserve``."""
    return Path(platformdirs.user_config_path(_APP))


def state_dir() -> Path:
    """``$XDG_STATE_HOME/sparkserve``, by default ``~/.local/state/sparkserve``."""
    return Path(platformdirs.user_state_path(_APP))


def cache_dir() -> Path:
    """``$XDG_CACHE_HOME/sparkserve``, by default ``~/.cache/sparkserve``."""
    return Path(platformdirs.user_cache_path(_APP))


def known_hosts_file() -> Path:
    """Host keys that ``cluster init`` recorded, in OpenSSH's format."""
    return config_dir() / "known_hosts"
