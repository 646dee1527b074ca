"""What a workload hands back, and how it is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table as RichTable

from .rounds import Spread

__all__ = ["Cell", "Table", "as_json", "as_markdown", "show", "with_section"]

Cell: TypeAlias = "Spread | float | int | str | None"


@dataclass
class Table:
    """Rows of one workload, each under the same headings.

    ``plot`` names the heading whose numbers are drawn.
    """

    slug: str
    title: str
    rows: list[dict[str, Cell]]
    plot: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def headings(self) -> list[str]:
        seen: dict[str, None] = {}
        for row in self.rows:
            seen.update(dict.fromkeys(row))
        return list(seen)


def show(console: Console, table: Table) -> None:
    """Print one table."""
    drawn = RichTable(title=table.title, title_justify="left", title_style="bold")
    for place, heading in enumerate(table.headings):
        drawn.add_column(heading, justify="left" if place == 0 else "right")
    for row in table.rows:
        drawn.add_row(*(written(row.get(heading)) for heading in table.headings))
    console.print(drawn)
    for note in table.notes:
        console.print(f"  {note}", markup=False)
    console.print()


def written(cell: Cell) -> str:
    """A cell as people read it: a median with its middle half, three digits of a number."""
    if cell is None:
        return ""
    if isinstance(cell, Spread):
        if cell.low == cell.high:
            return _number(cell.median)
        return f"{_number(cell.median)} ({_number(cell.low)}–{_number(cell.high)})"
    return cell if isinstance(cell, str) else _number(cell)


def as_json(tables: Sequence[Table], about: Mapping[str, Any]) -> dict[str, Any]:
    """Everything, as plain values."""
    return {"about": dict(about), "tables": [asdict(table) for table in tables]}


def as_markdown(tables: Sequence[Table], about: Mapping[str, Any]) -> str:
    """Everything, as a page to be read; without the names of single commands."""
    lines = [
        "# Measurements",
        "",
        f"By `make bench` on {_conditions(about)}",
        "",
        "A number with two more in brackets is a median, and the middle half of what was measured.",
        *_sections(tables, "##"),
    ]
    return "\n".join(lines) + "\n"


def with_section(
    page: str, tables: Sequence[Table], about: Mapping[str, Any], workloads: Sequence[str]
) -> str:
    """The page with a section for a run of some workloads alone, in the place of an earlier one of
    the same workloads, or else at the end."""
    heading = f"## A run of its own: {', '.join(workloads)}"
    options = " ".join(f"--workload {name}" for name in workloads)
    of_run = (
        f"By `make bench ARGS='{options}'`, not in one run with what stands above or below, on "
        f"{_conditions(about)} Times are to be compared within this section alone."
    )
    section = [heading, "", of_run, *_sections(tables, "###")]
    before, found, rest = page.partition(f"\n{heading}\n")
    _, next_one, after = rest.partition("\n## ")
    parts = [before.rstrip("\n"), "", *section]
    return "\n".join(parts) + "\n" + (f"{next_one}{after}" if found else "")


def _conditions(about: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    return (
        f"{about['when'][:10]}: {about['processors']} processors, load {about['load']:.2f} at the "
        f"start, {about['machine']}, Python {about['python']}, Redis {about['redis']}; {packages}."
    )


def _sections(tables: Sequence[Table], level: str) -> list[str]:
    lines = []
    for table in tables:
        headings = [heading for heading in table.headings if heading != "which"]
        lines += ["", f"{level} {table.title}", ""]
        lines.append(f"| {' | '.join(headings)} |")
        lines.append(f"|---|{'---:|' * (len(headings) - 1)}")
        for row in table.rows:
            lines.append(f"| {' | '.join(written(row.get(name)) for name in headings)} |")
        for note in table.notes:
            lines += ["", note]
    return lines


def _number(value: float) -> str:
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"
