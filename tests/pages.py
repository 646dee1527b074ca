"""The README and the pages of ``docs/``, as the tests read them: blocks, tables, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from django.core.checks import CheckMessage, run_checks

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page where the text begins."""

    page: str
    line: int
    language: str
    text: str

    @property
    def label(self) -> str:
        """Its first line, which says what file it would be in."""
        return self.text.partition("\n")[0]


def named(page: Path) -> str:
    """The page's path in the project."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str, heading: str = "") -> list[Block]:
    """The page's blocks in one language; with a heading, those under it."""
    text = page.read_text("utf-8")
    return [
        Block(named(page), text[: found.start(2)].count("\n") + 1, found[1], found[2])
        for found in re.finditer(r"^```([^\n`]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        if found[1] == language and (not heading or _heading_over(text[: found.start()]) == heading)
    ]


def _heading_over(text: str) -> str:
    """The last heading of a text that is outside of its blocks."""
    *_, last = re.finditer(r"^#+ (.+)$", _without_blocks(text), re.MULTILINE)
    return last[1]


def _without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _without_blocks(page.read_text("utf-8"))


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page's prose. Code in a line counts as a word, a cell as a paragraph."""
    text = re.sub(r"`[^`\n]*`", "x", _without_blocks(text))
    text = re.sub(r"\[([^\[\]]*)\]\([^)\s]*\)", r"\1", text)
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) )|\n(?=#)|(?<!\\)\|", text):
        yield from re.split(r"(?<=[.!?])[\"')*]* (?=[A-Z\"'(*x])", " ".join(part.split()))


def section(page: Path, heading: str) -> str:
    """What stands under a heading, up to the next one of any level."""
    found = re.search(
        rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", prose(page), re.DOTALL | re.MULTILINE
    )
    assert found, f"{named(page)} has no heading {heading!r}"
    return found[1]


def table(page: Path, heading: str, first: str) -> list[list[str]]:
    """The rows of the table under a heading whose first column is called ``first``."""
    rows: list[list[str]] = []
    for line in section(page, heading).splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if rows and not cells:
            break
        if rows or (cells and cells[0] == first):
            rows.append(cells)
    assert len(rows) > 2, f"{named(page)}, {heading!r}: no table that begins with {first!r}"
    return rows[2:]


def check_texts(identity: str) -> list[str]:
    """The texts of a system check, as its page has them. ``…`` stands for any text."""
    page = DOCS / "reference/checks.md"
    for heading in ("Settings and tasks", "The live server"):
        for of, text, *_ in table(page, heading, "Id"):
            if of == f"`{identity}`":
                store = "The lock store …"  # with which the page begins those of a server only once
                of_server = heading == "The live server" and not text.startswith(f"`{store}")
                return [f"{store}: {each}" if of_server else each for each in code(text)]
    raise AssertionError(f"{named(page)} does not have {identity}")


def is_documented(identity: str, text: str) -> bool:
    """Whether the page has this text of a system check. For some it has a sentence instead."""
    patterns = [re.escape(each).replace("…", ".*") for each in check_texts(identity)]
    return not patterns or any(re.fullmatch(each, text) for each in patterns)


def found(*, deploy: bool = False) -> list[CheckMessage]:
    """What our system checks say; the page has it."""
    messages = list(run_checks(tags=["tasklock"], include_deployment_checks=deploy))
    for message in messages:
        assert is_documented(str(message.id), message.msg), message
    return messages


def code(cell: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Text and target of each link and picture."""
    yield from re.findall(r"\[((?:[^\[\]]|`[^`]*`)*)\]\(([^)\s]+)\)", prose(page))


def anchors(page: Path) -> set[str]:
    """What a link may name after ``#``."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def toctree(index: Path = DOCS / "index.md") -> set[Path]:
    """The pages that an index of the docs lists."""
    return {
        index.parent / f"{line}.md"
        for block in blocks(index, "{toctree}")
        for line in block.text.splitlines()
        if line and not line.startswith(":")
    }
