"""The saved login: where clients of this user find the server that this user runs."""

from __future__ import annotations

import json
from pathlib import Path


def read_login(path: Path) -> tuple[str, str] | None:
    try:
        value = json.loads(path.read_text())
        return str(value["url"]), str(value["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
