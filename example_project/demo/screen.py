"""Prints the demo: a live view on a terminal, plain lines anywhere else, one table at the end."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from django_tasklock import LockInfo
from example_project.demo.evidence import Evidence
from example_project.videos.models import Video

PLAIN_EVERY_SECONDS = 1.0  # seconds between two plain reports


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

    def show(self, videos: Sequence[Video], held: Sequence[LockInfo]) -> None:
        """Draw how far the videos are and which locks are held."""
        counted = Counter(video.status for video in videos)
        progress = "   ".join(f"{status} {counted[status]}" for status in Video.Status.values)
        if self._live:
            self._live.update(Group(Text(f"videos: {progress}", style="bold"), _lock_table(held)))
        elif time.monotonic() - self._last_plain >= PLAIN_EVERY_SECONDS:
            self._last_plain = time.monotonic()
            self.say(f"videos: {progress}")
            for info in held:
                self._console.print("            " + _lock_line(info), soft_wrap=True)

    def verdict(self, evidence: Evidence, seconds: float) -> None:
        """Print the final tables and what is wrong, if anything is."""
        self._console.print(_video_table(evidence))
        self._console.print(_rest_table(evidence))
        for kill in evidence.kills:
            again = "and the job did not run again"
            if kill.again_after is not None:
                again = f"run again by {kill.again_pid} after {kill.again_after:.2f} s"
                if kill.waiting:
                    again += f", behind {kill.waiting} others in the queue"
            self._console.print(
                f"SIGKILL: process {kill.pid}, video:{kill.video}, {kill.segments} segments "
                f"written; {again}.",
                soft_wrap=True,
            )
        for problem in evidence.problems:
            self._console.print(f"WRONG: {problem}", style="red", soft_wrap=True)
        if evidence.problems:
            self._console.print(f"Failed after {seconds:.0f} s.", style="bold red")
        else:
            self._console.print(
                f"Every video was transcoded exactly once, in {seconds:.0f} s.", style="bold green"
            )


def _lock_fields(info: LockInfo) -> list[str]:
    age = "?"
    if info.acquired_at:
        age = f"{max(0.0, time.time() - info.acquired_at.timestamp()):.1f} s"
    ttl = "never" if info.ttl is None else f"{info.ttl:.1f} s"
    task = (info.owner.task or "").rpartition(".")[2]
    return [info.name, ttl, str(info.owner.pid or ""), task, age]


def _lock_line(info: LockInfo) -> str:
    name, ttl, pid, task, age = _lock_fields(info)
    return f"{name:<12} ttl {ttl:>7}   pid {pid:<8} {task or '-':<10} age {age}"


def _lock_table(held: Sequence[LockInfo]) -> Table:
    table = Table("lock", "TTL", "pid", "task", "age", title="live locks", title_justify="left")
    for info in held:
        table.add_row(*_lock_fields(info))
    return table


def _video_table(evidence: Evidence) -> Table:
    table = Table(title="Videos", title_justify="left", show_footer=True)
    lines = evidence.videos
    table.add_column("video", footer="all")
    table.add_column("status")
    for heading, numbers in {
        "submis-\nsions": [line.submissions for line in lines],
        "ffmpeg\nstarts": [line.started for line in lines],
        "trans-\ncodes": [line.transcodes for line in lines],
        "seg-\nments": [line.segments for line in lines],
        "skips": [line.skipped for line in lines],
        "kills": [line.kills for line in lines],
        "reco-\nveries": [line.recoveries for line in lines],
    }.items():
        table.add_column(heading, justify="right", footer=str(sum(numbers)))
    for line in lines:
        table.add_row(
            line.title,
            line.status,
            *(str(n) for n in (line.submissions, line.started, line.transcodes, line.segments)),
            *(str(n) for n in (line.skipped, line.kills, line.recoveries)),
            style="red" if line.problems else None,
        )
    return table


def _rest_table(evidence: Evidence) -> Table:
    table = Table("", "asked for", "done", "doubles", title="All", title_justify="left")
    submissions = sum(line.submissions for line in evidence.videos)
    transcodes = sum(line.transcodes for line in evidence.videos)
    for what, asked, done, doubles in (
        ("transcodes", submissions, transcodes, evidence.double_transcodes),
        ("charges", evidence.clicks, evidence.charges, evidence.double_charges),
        ("daily reports", evidence.schedulers, evidence.reports, evidence.double_reports),
    ):
        style = "red" if doubles else None
        table.add_row(what, str(asked), str(done), str(doubles), style=style)
    table.add_row("stuck in processing", "", str(evidence.stuck), "")
    table.add_row("locks left", "", str(len(evidence.locks_left)), "")
    return table
