"""``python -m tests.docs.every_file``: writes the page that has a line for every file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.pages import DOCS, ROOT

__all__ = ["FILES", "PAGE"]

PAGE = DOCS / "explanation/files.md"
PACKAGE = ROOT / "django_tasklock"
# In the order of the drawing, from the ground to the top.
ROOMS = (
    "_values", "_compat", "stores", "_engine", "celery", "operators", "cli", "admin", "contrib",
    "testing",
)  # fmt: skip
HEAD = """\
# Every file

A line for each file of the package: the first sentence of its docstring. This page is made by
`python -m tests.docs.every_file`, and a test compares it. [Architecture](architecture.md) says how
the files belong together.
"""


def text() -> str:
    """The page as it should be."""
    parts = [HEAD, "## The top\n", *lines(_top(), PACKAGE)]
    for room in ROOMS:
        folder = PACKAGE / room
        files = [*folder.rglob("*.py"), *folder.rglob("*.lua")]
        parts += [f"\n## `{room}/`\n", *lines(files, folder)]
    return "\n".join(parts) + "\n"


def lines(files: list[Path], folder: Path) -> Iterator[str]:
    # The files of a folder stand before those of the folders in it.
    for path in sorted(files, key=lambda each: (len(each.parts), each)):
        if sentence := first_sentence(path):
            yield f"* `{path.relative_to(folder)}`: {sentence}"


def first_sentence(path: Path) -> str:
    """What a file says of itself; "" for a package that says nothing."""
    source = path.read_text("utf-8")
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(source)) or ""
    else:
        comments = re.match(r"(?:-- ?.*\n)*", source)
        said = re.sub(r"(?m)^-- ?", "", comments[0] if comments else "")
    paragraph = " ".join(said.split("\n\n")[0].split())
    sentence = re.match(r".*?[.?](?= |$)|.*", paragraph)
    return sentence[0].replace("``", "`") if sentence else ""


def _top() -> list[Path]:
    return [*PACKAGE.glob("*.py"), PACKAGE / "management/commands/locks.py"]


FILES = {PAGE: text}

if __name__ == "__main__":
    PAGE.write_text(text(), "utf-8")
