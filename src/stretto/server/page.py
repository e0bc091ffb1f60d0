"""The dashboard's files, read once into memory: no path from a request is ever opened."""

from __future__ import annotations

import mimetypes
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent / "web"
NONE = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>stretto</title>
<p>The dashboard is not built into this installation: <code>make web</code> builds it. The API is at <code>/v1</code>.</p></html>"""


@dataclass(frozen=True, slots=True)
class Page:
    """path → (content, type, unchanging). Files under `assets/` have hashed names and may be kept for ever."""

    files: dict[str, tuple[bytes, str, bool]] = field(default_factory=dict)

    @staticmethod
    def load(folder: Path = FOLDER) -> Page:
        files: dict[str, tuple[bytes, str, bool]] = {}
        for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
            if path.is_file():
                name = "/" + path.relative_to(folder).as_posix()
                kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
                files[name] = (path.read_bytes(), kind, name.startswith("/assets/"))
        files["/"] = files.get("/index.html", (NONE, "text/html", False))
        return Page(files)

    def has(self, path: str) -> bool:
        return path in self.files
