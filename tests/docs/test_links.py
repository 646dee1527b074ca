"""Links of pages lead somewhere, their words are the project's, and their sentences are short.

Links between pages of the docs are checked by `make docs` too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import every_file
from tests.pages import DOCS, PAGES, README, ROOT, anchors, links, named, prose, sentences, toctree

LONGEST = 30
"""words of a sentence"""
CHINESE = ROOT / "README.zh-Hans.md"
BESIDE = [ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")]


@pytest.mark.parametrize("page", [*PAGES, CHINESE], ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    # Given a page with links to files of the project, but to no host, whose pages may change
    for text, target in links(page):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page

        # I expect the file to be there
        assert there.exists(), f"[{text}]({target})"

        # And the heading that the link names
        assert not anchor or anchor in anchors(there), f"[{text}]({target})"


def test_every_page_of_the_docs_is_in_a_toctree() -> None:
    listed = {page for index in DOCS.rglob("index.md") for page in toctree(index)}
    assert set(PAGES) - {README, DOCS / "index.md"} == listed


@pytest.mark.parametrize("page", [*PAGES, *BESIDE], ids=named)
def test_words(page: Path) -> None:
    """One word for one thing, as everywhere in the project."""
    foreign = r"unlock\w*|mutex\w*|reset\w*|flush\w*|refresh\w*|touch\w*|free[sd]|freeing|timeouts?"
    text = re.sub(r"`[^`]*`|visibility timeout", "", prose(page))
    assert re.findall(rf"\b(?:{foreign})\b", text, re.IGNORECASE) == []


@pytest.mark.parametrize("page", [*PAGES, *BESIDE], ids=named)
def test_a_sentence_has_at_most_thirty_words(page: Path) -> None:
    found = list(sentences(page.read_text("utf-8")))
    assert [each for each in found if len(each.split()) > LONGEST] == []


def test_what_a_reader_is_asked_to_read() -> None:
    """The README in a minute or two; all pages in an afternoon, but for the one that is made of
    docstrings."""
    readme = README.read_text("utf-8")
    assert len(readme.splitlines()) <= 100
    assert len(readme.split()) <= 750
    written = [page for page in DOCS.rglob("*.md") if page != every_file.PAGE]
    assert sum(len(page.read_text("utf-8").split()) for page in written) <= 30_000
