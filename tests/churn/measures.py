"""What is measured, and whether it has grown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

__all__ = ["Measures", "grown", "table"]


@dataclass(frozen=True)
class Measures:
    """Of some seconds, by the median: of Redis, and of all processes together."""

    memory: float
    """bytes that Redis uses"""
    keys: float
    connections: float
    threads: float
    files: float
    """open files of all processes"""
    resident: float
    """bytes of memory of all processes"""
    lines: float
    """log lines a minute, of all levels"""
    warnings: float
    """log lines a minute from WARNING on"""
    turns: float
    """takings and givings back a second"""

    @property
    def lines_a_turn(self) -> float:
        """A machine that has more time for the processes has them say more."""
        return self.lines / 60 / max(self.turns, 0.001)

    @property
    def warnings_a_turn(self) -> float:
        return self.warnings / 60 / max(self.turns, 0.001)


ALLOWED = {
    # the part by which it may grow, and how much in any case
    "memory": (0.10, 300_000),
    "keys": (0.5, 300),
    "connections": (0.10, 8),
    "threads": (0.0, 4),
    "files": (0.10, 16),
    "resident": (0.15, 20_000_000),
    "lines_a_turn": (0.25, 0.02),
    "warnings_a_turn": (0.25, 0.01),
}
"""a busier moment of the machine is no leak"""


def grown(measured: Sequence[Measures]) -> list[str]:
    """What has grown from the first to the last of these, as sentences."""
    first, last = measured[0], measured[-1]
    found = []
    for name, (part, least) in ALLOWED.items():
        before, after = getattr(first, name), getattr(last, name)
        if after > before * (1 + part) + least:
            what = name.replace("_", " ")
            found.append(f"{what} grew from {before:,.10g} to {after:,.10g}")
    return found


def table(measured: Sequence[Measures], times: Sequence[str]) -> str:
    """As Markdown: a row for each number, a column for each time."""
    titles = {
        "memory": "memory of Redis, bytes", "keys": "keys", "connections": "connections to Redis",
        "threads": "threads, all processes", "files": "open files, all processes",
        "resident": "resident memory, all processes, bytes", "lines": "log lines a minute",
        "warnings": "of these from WARNING on", "turns": "turns a second",
    }  # fmt: skip
    rows = ["| | " + " | ".join(times) + " |", "|---|" + "---:|" * len(times)]
    for field in fields(Measures):
        values = " | ".join(f"{getattr(each, field.name):,.0f}" for each in measured)
        rows.append(f"| {titles[field.name]} | {values} |")
    return "\n".join(rows)
