"""Links between the pages of the repository lead somewhere, and the site lists every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchor(heading: str) -> str:
    """Return the name by which a heading is linked to."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    lost = []
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        path, _, name = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (name and name not in map(anchor, HEADING.findall(target.read_text()))):
            lost.append(link)
    assert lost == []


def test_the_site_lists_every_page_of_docs():
    listed = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in ROOT.glob("docs/*.md") if f": {page.name}\n" not in listed] == []
