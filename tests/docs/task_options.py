"""``python -m tests.docs.task_options``: writes the options of tasks where readers look for them.

``celery/options.py`` says each one once: in a comment above its attribute, whose first line is its
type, and whose others are Markdown of the reference page. A line that ends with a question begins
the options that answer it. The page gets a table for each question, and the docstring of
`LockedTask` a paragraph for each option, without links.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from tests.pages import DOCS, ROOT

__all__ = ["FILES", "options"]

SAID = ROOT / "django_tasklock/celery/options.py"
PAGE = DOCS / "reference/task-options.md"
CLASS = ROOT / "django_tasklock/celery/task.py"
WIDTH = 100


class Option(NamedTuple):
    """What an attribute and the comment above it say, and the question above them."""

    question: str
    name: str
    kind: str
    default: str
    meaning: str

    def row(self) -> str:
        """Its row of the page's table."""
        return f"| `{self.name}` | {self.kind} | `{self.default}` | {self.meaning} |"

    def paragraph(self) -> str:
        """What the docstring says of it."""
        head = f"``{self.name}``: {in_docstring(self.kind)}; default {self.default}."
        head = textwrap.fill(head, WIDTH - 4)
        text = textwrap.fill(in_docstring(self.meaning), WIDTH - 8, break_on_hyphens=False)
        return textwrap.indent(f"{head}\n{textwrap.indent(text, ' ' * 4)}\n", " " * 4)


def options() -> Iterator[Option]:
    """All options, in the order of their attributes."""
    form = r"^    # -+ (.+\?)$|((?:^    #: .*\n){2,})^    (\w+): ClassVar\[.+\] = (.+)$"
    question = ""
    for asks, comment, name, default in re.findall(form, SAID.read_text("utf-8"), re.MULTILINE):
        question = asks or question
        if comment:
            kind, *meaning = [line.removeprefix("    #: ") for line in comment.splitlines()]
            yield Option(question, name, kind, default, " ".join(meaning))


def in_docstring(text: str) -> str:
    """Markdown as a docstring has it: without links and without quotes around quotes. The names of
    classes lead somewhere."""
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
    return re.sub(r"`([^`]+)`", in_quotes, text)


def in_quotes(code: re.Match[str]) -> str:
    if re.fullmatch(r'"[^"]*"', code[1]):
        return code[1]
    return code[0] if re.fullmatch(r"([A-Z][a-z]+){2,}", code[1]) else f"`{code[0]}`"


def page() -> str:
    """The page with the tables as they should be."""
    tables = []
    for question, some in groupby(options(), lambda option: option.question):
        head = f"## {question}\n\n| Option | Type | Default | |\n|---|---|---|---|\n"
        tables.append(head + "".join(f"{option.row()}\n" for option in some))
    part = r"^## .+\?\n\n\| Option (?:.*\n)+?(?=\n`apply_async` takes)"
    return with_part(PAGE, part, "\n".join(tables))


def module() -> str:
    """The module of `LockedTask` with its docstring as it should be."""
    paragraphs = "".join(option.paragraph() for option in options())
    return with_part(CLASS, r"^    ``\w+``: (?:.*\n)+?(?=    \"\"\"\n)", paragraphs)


def with_part(path: Path, pattern: str, part: str) -> str:
    text, times = re.subn(pattern, lambda _: part, path.read_text("utf-8"), flags=re.MULTILINE)
    assert times == 1, path
    return text


FILES = {PAGE: page, CLASS: module}

if __name__ == "__main__":
    for path, text in FILES.items():
        path.write_text(text(), "utf-8")
