"""The code of the README and the docs runs, its commands and links are ones that there are, and its
words and sentences are the project's.

Links between pages of the docs are checked by `make docs` too.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from django.core.management import CommandError, load_command_class

from django_tasklock.stores.base import BaseStore
from django_tasklock.testing import StoreContract
from tests.docs import every_file
from tests.docs.readers import LEFT_OUT, READERS, VALUES
from tests.docs.run_pages import foreign_names, loaded
from tests.pages import (
    DOCS,
    PAGES,
    README,
    ROOT,
    anchors,
    blocks,
    links,
    named,
    prose,
    sentences,
    toctree,
)
from tests.servers import RedisServer

OWN_STORE = DOCS / "howto/store-of-your-own.md"
TUTORIAL = DOCS / "tutorial.md"  # tests/top/test_tutorial.py does what it says
EVERY_PAGE = [*PAGES, ROOT / "README.zh-Hans.md"]
LONGEST = 30
"""words of a sentence"""
BESIDE = [ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")]


def test_the_code_of_every_page_runs(
    own_redis_server: RedisServer, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    # Given the pages, and a process for all of them, which forks for each: processes that begin
    # anew would take a minute
    pages = [named(page) for page in EVERY_PAGE if page not in (OWN_STORE, TUTORIAL)]
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
        "EXAMPLE_STATE": str(tmp_path),
        "EXAMPLE_REDIS_URL": own_redis_server.url,
    }
    command = [sys.executable, "-m", "tests.docs.run_pages", *pages]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr

    # I expect each page to be run, and nothing to go wrong on it
    said = json.loads(done.stdout.splitlines()[-1])
    assert list(said) == pages
    for page in pages:
        with subtests.test(page):
            if said[page]:
                pytest.fail(said[page], pytrace=False)


def test_a_block_imports_what_is_not_the_readers() -> None:
    """A block is a file: it does not see what another block of the page imports or defines."""
    unknown, used = {}, set()
    for page in EVERY_PAGE:
        for block in blocks(page, "python"):
            if page != TUTORIAL and block.label not in LEFT_OUT:
                names = foreign_names(block)
                used |= names
                unknown[f"{block.page}:{block.line}"] = names - {*READERS, *VALUES}
    assert {where: names for where, names in unknown.items() if names} == {}
    assert {*READERS, *VALUES} - used == set(), "names that no page uses"


class TestStoreOfTheDocs(StoreContract):
    """The store that the docs show keeps the contract."""

    def make_store(self) -> BaseStore:
        with patch.dict(sys.modules):
            # A later one imports an earlier one.
            *_, shown = [loaded(block, {}) for block in blocks(OWN_STORE, "python")]
        store: BaseStore = vars(shown)["TestDictStore"]().make_store()
        return store


def test_the_commands_in_blocks_are_understood() -> None:
    """Every ``manage.py locks`` of a shell is one that the command takes."""
    parser = load_command_class("django_tasklock", "locks").create_parser("manage.py", "locks")
    languages = ("text", "console", "sh")
    for block in [each for page in EVERY_PAGE for name in languages for each in blocks(page, name)]:
        for arguments in re.findall(r"manage\.py locks (.+)", block.text):
            words = shlex.split(arguments, comments=True)
            ends = [at for at, word in enumerate(words) if word in (">", "|", "||", "&&")]
            try:
                parser.parse_args(words[: ends[0] if ends else None])
            except CommandError as error:
                pytest.fail(f"{block.page}: locks {arguments}: {error}")


def test_what_is_made_by_make_is_a_target() -> None:
    targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    asked = {
        (named(page), name)
        for page in [*EVERY_PAGE, ROOT / "CONTRIBUTING.md"]
        for name in re.findall(r"(?m)(?:^\$ |`)make ([a-z][a-z-]*)", page.read_text("utf-8"))
    }
    assert [(page, name) for page, name in asked if name not in targets] == []


@pytest.mark.parametrize("page", EVERY_PAGE, ids=named)
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
    assert len(readme.split()) <= 780
    written = [page for page in DOCS.rglob("*.md") if page != every_file.PAGE]
    assert sum(len(page.read_text("utf-8").split()) for page in written) <= 31_000
