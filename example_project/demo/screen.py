"""Prints the demo: a live view on a terminal, plain lines anywhere else, tables at the end."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from django_tasklock import LockInfo
from example_project.videos.models import Video

PLAIN_EVERY_SECONDS = 1.0  # seconds between two plain reports
COUNTED = {
    "submissions": "submis-\nsions",
    "started": "ffmpeg\nstarts",
    "transcodes": "trans-\ncodes",
    "skipped": "skips",
    "kills": "kills",
    "recoveries": "reco-\nveries",
}
"""the columns of the table of videos, and their headings"""


class Screen:
    """Where the demo speaks."""

    def __init__(self, *, quiet_stdout: bool) -> None:
        self._console = Console(stderr=quiet_stdout, highlight=False)
        if not self._console.is_terminal:
            self._console.width = 110
        self._started = time.monotonic()
        self._live: Live | None = None
        self._last_plain = 0.0

    def say(self, text: str) -> None:
        """Print one line of the story, with the seconds since the start."""
        self._console.print(f"{time.monotonic() - self._started:5.1f} s  {text}", soft_wrap=True)

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        """The block's `show` calls draw over each other, if this is a terminal."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, refresh_per_second=8, transient=True) as self._live:
            yield
        self._live = None

    def show(self, statuses: Sequence[str], held: Sequence[LockInfo]) -> None:
        """Draw how far the videos are and which locks are held."""
        counted = Counter(statuses)
        progress = "   ".join(f"{status} {counted[status]}" for status in Video.Status.values)
        if self._live:
            table = Table("lock", "TTL", "pid", "task", "age", title=f"videos: {progress}")
            for info in held:
                age = time.time() - info.acquired_at.timestamp() if info.acquired_at else 0
                task = (info.owner.task or "").rpartition(".")[2]
                pid = str(info.owner.pid)
                table.add_row(info.name, f"{info.ttl:.1f} s", pid, task, f"{age:.1f} s")
            self._live.update(table)
        elif time.monotonic() - self._last_plain >= PLAIN_EVERY_SECONDS:
            self._last_plain = time.monotonic()
            locks = [f"{info.name} (pid {info.owner.pid}, {info.ttl:.0f} s)" for info in held]
            self.say(f"videos: {progress}   locks: {', '.join(locks) or 'none'}")

    def verdict(self, evidence: dict[str, Any], seconds: float) -> None:
        """Print the final tables and what is wrong, if anything is."""
        self._console.print(_videos(evidence["videos"]))
        table = Table("", "asked for", "done", "doubles", title="All", title_justify="left")
        for asked, done in (("submissions", "transcodes"), ("schedulers", "reports")):
            doubles = evidence[f"double_{done}"]
            row = (str(evidence[asked]), str(evidence[done]), str(doubles))
            table.add_row(done, *row, style="red" if doubles else None)
        table.add_row("stuck in processing", "", str(evidence["stuck"]), "")
        table.add_row("locks left", "", str(len(evidence["locks_left"])), "")
        self._console.print(table)
        for problem in evidence["problems"]:
            self._console.print(f"WRONG: {problem}", style="red", soft_wrap=True)
        verdict = f"Every video was transcoded exactly once, in {seconds:.0f} s."
        if evidence["problems"]:
            verdict = f"Failed after {seconds:.0f} s."
        self._console.print(verdict, style="bold red" if evidence["problems"] else "bold green")


def _videos(lines: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="Videos", title_justify="left", show_footer=True)
    table.add_column("video", footer="all")
    table.add_column("status")
    for name, heading in COUNTED.items():
        total = sum(line[name] for line in lines)
        table.add_column(heading, justify="right", footer=str(total))
    for line in lines:
        counts = [str(line[name]) for name in COUNTED]
        style = "red" if line["problems"] else None
        table.add_row(line["video"], line["status"], *counts, style=style)
    return table
