"""What a workload hands back, and how it is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .rounds import Spread

__all__ = ["DRAWING", "PAGE", "SOAK", "Cell", "Table"]

Cell: TypeAlias = "Spread | float | int | str | None"

DRAWING = "../drawings/measured.svg"
"""where the chart is, from the page"""
PAGE = f"""# Measurements

Written by `make bench ARGS="--page docs/operations/measured.md"` on {{about}}

![Ratios as bars: shorter is better]({DRAWING})

The floor is redis-py with hiredis: `SET key token NX PX`, and a script that deletes the key if it \
has the token. Contenders take turns in short rounds. A ratio is to the floor's number right \
before it. A cell is a median; brackets have the middle half. Times depend on the machine, so \
compare ratios.
"""
SOAK = "## An hour of disturbance\n"
"""what begins the last part of the page, which `make soak ARGS="--page ..."` writes"""


@dataclass
class Table:
    """The rows of one workload, each under the same headings."""

    title: str
    note: str
    rows: list[dict[str, Cell]]

    def markdown(self) -> str:
        """With columns that line up, for terminals too."""
        headings = list(dict.fromkeys(heading for row in self.rows for heading in row))
        lines = [
            headings, *([_written(row.get(name), name) for name in headings] for row in self.rows)
        ]  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = [
            [cell.rjust(width) if place else cell.ljust(width)
             for place, (cell, width) in enumerate(zip(line, widths, strict=True))]
            for line in lines
        ]  # fmt: skip
        rule = "|".join("-" * (width + 1) + (":" if place else "-")
                        for place, width in enumerate(widths))  # fmt: skip
        head, *rows = (f"| {' | '.join(line)} |" for line in padded)
        table = "\n".join([head, f"|{rule}|", *rows])
        return f"## {self.title}\n\n{self.note}\n\n{table}\n"


def _written(cell: Cell, heading: str) -> str:
    """A cell as people read it: three digits of a number, the middle half of what is no time."""
    if isinstance(cell, Spread):
        if cell.low == cell.high or heading.endswith(("ms", "µs")):
            return _number(cell.median)
        return f"{_number(cell.median)} ({_number(cell.low)}–{_number(cell.high)})"
    return cell or "" if isinstance(cell, str | None) else _number(cell)


def _number(value: float) -> str:
    if float(value).is_integer() or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
