"""A real browser without a window: pages are loaded in Chromium, and a script tells what it finds there.

Chromium writes the page's elements when it is done, so that no driver and no further package is needed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--enable-logging=stderr",
    "--virtual-time-budget=5000",
)
WATCH = """<script>
window.problems = [];
addEventListener("error", (event) => problems.push(event.message));
addEventListener("securitypolicyviolation", (event) => problems.push(`blocked ${event.blockedURI}`));
</script>"""
PROBE = """<script>
addEventListener("load", () => {
  let found = null;
  try { found = (() => { %s })(); } catch (error) { problems.push(String(error)); }
  const answer = document.createElement("pre");
  answer.id = "probe";
  answer.textContent = JSON.stringify({ found, problems });
  document.body.append(answer);
});
</script>"""


def find() -> str:
    """Return the browser's path; skip the test where there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("there is no Chromium here: install the package chromium")
    return found


def visit(page: str, script: str, folder: Path, size: str = "1440,900", fragment: str = "") -> Any:
    """Return what a script, the body of a function, returns within a page; fail on any error of the page."""
    watched = page.replace("<head>", f"<head>{WATCH}", 1)
    before, end, after = watched.rpartition("</body>")
    file = folder / "page.html"
    file.write_text(f"{before}{PROBE % script}{end}{after}", encoding="utf-8")
    command = [find(), *FLAGS, f"--window-size={size}", f"--user-data-dir={folder / 'browser'}", "--dump-dom"]
    if os.geteuid() == 0:
        # Chromium's sandbox refuses to run as root
        command.append("--no-sandbox")
    finished = subprocess.run(
        [*command, f"{file.as_uri()}{fragment}"], capture_output=True, text=True, check=False, timeout=120
    )
    answer = re.search(r'<pre id="probe">(.*?)</pre>', finished.stdout, re.S)
    if answer is None:
        pytest.fail(f"the page did not load: {finished.stderr[-2000:]}")
    told = json.loads(unescape(answer[1]))
    if told["problems"] or "Uncaught" in finished.stderr:
        pytest.fail(f"the page has errors: {told['problems']} {finished.stderr[-2000:]}")
    return told["found"]
