"""The documentation site: it builds without a warning, every link resolves, and its search knows every page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.extras


class Page(HTMLParser):
    """What a page refers to, and the places in it that others can refer to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: set[str] = set()
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.references.add(value)
            elif name == "id" and value:
                self.places.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_every_link_resolves_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 20
    wrong = []
    for path, page in pages.items():
        for reference in page.references:
            address, place = urldefrag(reference)
            if urlsplit(address).scheme:
                assert not address.endswith((".js", ".css", ".woff2")), address
                continue
            target = (path.parent / unquote(address)).resolve() if address else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (place and target in pages and place not in pages[target].places):
                wrong.append(f"{path.relative_to(site)}: {reference}")
    assert wrong == []


def test_the_search_knows_every_page(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    known = {entry["location"].partition("#")[0].strip("/") for entry in index["docs"]}
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= known
    assert any("must_go" in entry["text"] for entry in index["docs"])
