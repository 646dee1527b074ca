"""Rows in columns: aligned lines for a pipe, rich's table for a terminal."""

from __future__ import annotations

import io
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from unicodedata import combining, east_asian_width

from django.core.management.base import BaseCommand

__all__ = [
    "NOTHING",
    "as_lines",
    "as_rich_table",
    "as_table",
    "lines_of",
    "widths_of",
    "without",
]

NOTHING = "-"
"""an empty cell"""
NOT_FOLDED = ("TTL", "AGE", "WAIT", "PROCESS")
"""columns whose cells stay on one line"""
LEFT_OUT = ("TASK ID", "AGE", "WAIT", "TASK", "PROCESS", "HELD BY")
"""columns that are left out on a narrow terminal, in this order, until the others have room"""
FOLDED_WIDTH = 12
"""how many cells a folded column needs, so that people can read it"""
BETWEEN_COLUMNS = 3
EDGES = 2
"""cells that rich's table puts between two columns, and at both sides together"""


def as_lines(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return aligned columns, two spaces apart, one row on each line, the headers first."""
    both = [headers, *rows]
    return lines_of(both, widths_of(both))


def widths_of(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column, in cells of a terminal."""
    return [max(map(_width, column)) for column in zip(*rows, strict=True)]


def lines_of(rows: Iterable[Sequence[str]], widths: Sequence[int]) -> str:
    """Return rows as lines, two spaces apart, in columns of at least these widths."""
    return "\n".join(
        "  ".join(_padded(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def without(
    columns: Collection[str], headers: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the headers and the rows without some columns."""
    kept = [at for at, header in enumerate(headers) if header not in columns]
    return [headers[at] for at in kept], [[row[at] for at in kept] for row in rows]


def as_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    command: BaseCommand,
    options: Mapping[str, Any],
) -> str:
    """Return rich's table if the command writes to a terminal and rich is installed, or else
    aligned lines."""
    if command.stdout.isatty():
        table = as_rich_table(headers, rows, color=not options["no_color"])
        if table is not None:
            return table
    return as_lines(headers, rows)


def as_rich_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, color: bool
) -> str | None:
    """Return rich's table, as wide as the terminal; None where rich is not installed.

    A terminal that is too narrow for all columns gets those that matter more.
    """
    try:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return None
    width = shutil.get_terminal_size().columns
    headers, rows = _fitting(headers, rows, width)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold", no_wrap=header in NOT_FOLDED)
    for row in rows:
        # Text, so that no cell is read as rich's own markup.
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    out = io.StringIO()
    console = Console(
        file=out,
        force_terminal=True,
        no_color=None if color else True,
        width=width,
    )
    console.print(table)
    return out.getvalue()


_STYLES = {"gone": "bold red", "never": "yellow", "cooling": "cyan", NOTHING: "dim"}


def _fitting(
    headers: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The columns that can be read on a terminal of so many cells."""
    widths = widths_of([headers, *rows])
    needs = {
        header: most if header in NOT_FOLDED else min(most, FOLDED_WIDTH)
        for header, most in zip(headers, widths, strict=True)
    }
    for header in LEFT_OUT:
        if sum(needs.values()) + BETWEEN_COLUMNS * (len(needs) - 1) + EDGES <= width:
            break
        needs.pop(header, None)
    return without(set(headers) - set(needs), headers, rows)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _width(text: str) -> int:
    """How many cells of a terminal a text takes: two for each Chinese character."""
    if text.isascii():
        return len(text)
    return sum(
        0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text
    )
