"""Takes the screenshot of the README: docs/figures/dashboard.png.

python web/screenshot.py

Starts `stretto serve` with 4 slots, submits the examples one after the other as users would, and photographs the cluster view
in Chromium after a few minutes. Everything on the picture is real: jobs, sizes, reasons and events.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "page"))

from page_harness import launch, serving  # noqa: E402

TARGET = ROOT / "docs" / "figures" / "dashboard.png"
SERVER = ("--slots", "4", "--interval", "5", "--cooldown", "10", "--policy", "goodput")
SIZE = {"width": 1280, "height": 900}
SCALE = 1.5
JOBS = [
    # seconds, name, arguments of the example, workers
    (0, "chars", ["--epochs", "40"], (1, 4)),
    (25, "digits", ["--epochs", "30"], (1, 2)),
    (55, "gan", ["--epochs", "60"], (1, 2)),
    (100, "mixed", ["--epochs", "80"], (2, 2)),
    (150, "digits-wide", ["--epochs", "40", "--width", "32"], (1, 2)),
    (185, "chars-large", ["--epochs", "40", "--batch-size", "64"], (4, 4)),
]


def take(home: Path, target: Path, *, seconds: float) -> None:
    with serving(home, *SERVER) as server, server.client() as client, sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page(viewport=SIZE, device_scale_factor=SCALE)  # type: ignore[arg-type]
        page.goto(f"{server.url}/#token={server.token}")
        page.wait_for_selector(".connection-live")
        elapsed = 0.0
        for at, name, arguments, (least, most) in JOBS:
            page.wait_for_timeout((at - elapsed) * 1000)
            elapsed = at
            script = f"examples/{name.split('-')[0]}.py"
            spec = {
                "name": name,
                "run": ["python", script, *arguments],
                "workdir": str(ROOT),
                "elastic": {"min": least, "max": most},
            }
            client.submit(spec)
        page.wait_for_timeout((seconds - elapsed) * 1000)
        picture = Image.open(BytesIO(page.screenshot()))
        browser.close()
    # A palette is enough for flat colours, and a third of the size.
    picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the screenshot of the dashboard.")
    parser.add_argument("--target", type=Path, default=TARGET)
    parser.add_argument("--seconds", type=float, default=240.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stretto-screenshot-") as home:
        take(Path(home) / "home", options.target, seconds=options.seconds)
    print(f"{options.target}: {options.target.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
