"""``python -m sparkserve``: the same as the ``sparkserve`` command."""

from __future__ import annotations

from sparkserve.cli.main import main

if __name__ == "__main__":
    main()
