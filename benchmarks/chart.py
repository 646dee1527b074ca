"""Ratios of three tables as one drawing: bars, each beside those of other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .contenders import FLOOR, OURS, PYTHON_REDIS_LOCK, REDIS_PY
from .rounds import Spread
from .tables import Table

__all__ = ["chart"]

PANELS = (
    ("Acquire and release, over the floor", "Acquire and release", "1 thread",
     (FLOOR, OURS, REDIS_PY, PYTHON_REDIS_LOCK)),
    (f"Hand-over to one of 50 waiters, over {PYTHON_REDIS_LOCK}", "Hand-over to a waiter",
     f"of {PYTHON_REDIS_LOCK}'s",
     [f"{name}, 50 waiters" for name in (OURS, PYTHON_REDIS_LOCK, REDIS_PY)]),
    ("Worker's CPU of a task that does nothing, over a task without a lock",
     "A no-op Celery task", "worker's CPU",
     ("a plain task", OURS, "cache.add and delete", "celery-once")),
)  # fmt: skip
"""heading; title and column of the table, and its rows that are drawn"""
WIDTH, LEFT, ROOM, STEP = 760, 190, 480, 26


def chart(tables: Sequence[Table]) -> str:
    """Return the drawing as SVG; without the panels of tables that were not measured."""
    lines, said, y = [], [], 10
    by_title = {table.title: {str(row.get("")): row for row in table.rows} for table in tables}
    for heading, title, column, names in PANELS:
        rows = by_title.get(title, {})
        bars: dict[str, float] = {}
        for name in names:
            cell = rows.get(name, {}).get(column)
            if isinstance(cell, Spread | float | int):
                bars[name.partition(",")[0]] = cell.median if isinstance(cell, Spread) else cell
        if not bars:
            continue
        y += 28
        lines.append(f'<text x="24" y="{y}" font-weight="600">{escape(heading)}</text>')
        said.append(f"{heading}: " + ", ".join(f"{who} {bar:.2f}" for who, bar in bars.items()))
        for label, bar in bars.items():
            y += STEP
            length = round(bar / max(bars.values()) * ROOM)
            color = "#2f6fb3" if label == OURS else "#b8c4d6"
            lines += [
                f'<text x="{LEFT - 8}" y="{y}" text-anchor="end">{escape(label)}</text>',
                f'<rect x="{LEFT}" y="{y - 14}" width="{length}" height="18" fill="{color}"/>',
                f'<text x="{LEFT + length + 8}" y="{y}">{bar:.2f}</text>',
            ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 24}" role="img" '
        'aria-labelledby="title desc" font-family="system-ui, sans-serif" font-size="14">\n'
        '<title id="title">What a lock costs, as ratios: shorter is better</title>\n'
        f'<desc id="desc">{escape(". ".join(said))}.</desc>\n'
        f'<rect width="{WIDTH}" height="{y + 24}" rx="8" fill="#ffffff"/>\n'
    )
    return head + "\n".join(lines) + "\n</svg>\n"
