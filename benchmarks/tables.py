"""What a workload hands back, and how it is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .rounds import Spread

__all__ = ["PAGE", "Cell", "Table"]

Cell: TypeAlias = "Spread | float | int | str | None"

PAGE = """# Measurements

Written by `make bench ARGS="--page docs/operations/measured.md"` on {about}

The floor is redis-py with hiredis: `SET key token NX PX`, and a script that deletes the key if it \
has the token. Contenders take turns in short rounds, and each number is divided by the floor's \
that was measured right before it. A cell is a median, with the middle half of what was measured \
in brackets. Compare ratios: times depend on the machine and on what else it does. Redis itself \
counts round trips and commands. [Performance](performance.md) says what to make of it.
"""


@dataclass
class Table:
    """The rows of one workload, each under the same headings."""

    title: str
    note: str
    rows: list[dict[str, Cell]]

    def markdown(self) -> str:
        """With columns that line up, for terminals too."""
        headings = list(dict.fromkeys(heading for row in self.rows for heading in row))
        lines = [headings, *([_written(row.get(name)) for name in headings] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rule = [f"{'-' * (width - 1)}:" if place else "-" * width
                for place, width in enumerate(widths)]  # fmt: skip
        padded = [
            [cell.rjust(width) if place else cell.ljust(width)
             for place, (cell, width) in enumerate(zip(line, widths, strict=True))]
            for line in (headings, rule, *lines[1:])
        ]  # fmt: skip
        rows = "\n".join(f"| {' | '.join(line)} |" for line in padded)
        return f"## {self.title}\n\n{self.note}\n\n{rows}\n"


def _written(cell: Cell) -> str:
    """A cell as people read it: a median with its middle half, three digits of a number."""
    if isinstance(cell, Spread):
        if cell.low == cell.high:
            return _number(cell.median)
        return f"{_number(cell.median)} ({_number(cell.low)}–{_number(cell.high)})"
    return cell or "" if isinstance(cell, str | None) else _number(cell)


def _number(value: float) -> str:
    if float(value).is_integer() or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
