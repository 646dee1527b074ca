"""One plot a table, as SVG; without matplotlib there are none."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from .peers import FLOOR, OURS
from .rounds import Spread
from .tables import Table

__all__ = ["draw"]

COLOURS = {OURS: "#0b6e4f", FLOOR: "#888888"}
OTHERS_COLOUR = "#9db4c0"


def draw(table: Table, folder: Path) -> Path | None:
    """Draw the table's plot into ``folder``; None where it has none, or nothing can draw."""
    bars = [(str(next(iter(row.values()))), row.get(table.plot)) for row in table.rows]
    drawn = [(name, value) for name, value in bars if isinstance(value, Spread | int | float)]
    if not table.plot or not drawn:
        return None
    try:
        matplotlib = import_module("matplotlib")
    except ImportError:
        return None
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = table.slug  # The same numbers make the same file.
    pyplot = import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(7.5, 0.9 + 0.34 * len(drawn)), layout="constrained")
    names = [name for name, _ in drawn]
    middles = [value.median if isinstance(value, Spread) else value for _, value in drawn]
    errors = [
        [max(0.0, v.median - v.low) if isinstance(v, Spread) else 0 for _, v in drawn],
        [max(0.0, v.high - v.median) if isinstance(v, Spread) else 0 for _, v in drawn],
    ]
    colours = [_colour(name) for name in names]
    axes.barh(names, middles, color=colours, xerr=errors, ecolor="#333333", height=0.7)
    axes.invert_yaxis()
    if min(middles) > 0 and max(middles) > 50 * min(middles):
        axes.set_xscale("log")
    axes.set_xlabel(table.plot)
    axes.set_title(table.title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{table.slug}.svg"
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


def _colour(name: str) -> str:
    for begin, colour in COLOURS.items():
        if name.startswith(begin):
            return colour
    return OTHERS_COLOUR
