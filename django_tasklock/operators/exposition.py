"""Prometheus's text format, for gauges. No library is needed to write it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["CONTENT_TYPE", "Gauge", "as_text", "sources"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

sources: dict[str, Callable[[], str]] = {}
"""functions that return what processes have counted, in the same format, by the app's name"""


@dataclass(slots=True)
class Gauge:
    """A gauge, with a value for each set of labels that is known."""

    name: str
    text: str
    values: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> None:
        """Add the value for these labels."""
        self.values.append((labels, value))


def as_text(gauges: Iterable[Gauge]) -> str:
    """Return the gauges in text format. One without a value is left out: nothing is known of it."""
    lines: list[str] = []
    for gauge in gauges:
        if gauge.values:
            lines += [f"# HELP {gauge.name} {gauge.text}", f"# TYPE {gauge.name} gauge"]
        for labels, value in gauge.values:
            pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{gauge.name}{{{pairs}}} {value:.17g}")
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
