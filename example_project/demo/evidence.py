"""Counts what happened, from the ledgers, the files and the rows, and says what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery.result import AsyncResult
from django.conf import settings

from django_tasklock import locks
from example_project.demo.clips import Clip
from example_project.demo.crowd import Crowd
from example_project.demo.killer import Kill, Killer
from example_project.processes import Process
from example_project.uses.crew import Shown
from example_project.videos import ffmpeg, ledger
from example_project.videos.models import DailyReport, Order, Payment, Video

LENGTH_TOLERANCE_SECONDS = 0.5  # seconds; sound and picture do not end on the same frame


@dataclass
class VideoEvidence:
    """One line of the final table.

    Attributes:
        started: how often an ffmpeg was started for it.
        transcodes: how often one finished; must be 1.
        skipped: submissions that ended as "skipped".
        kills, recoveries: runs ended by SIGKILL, and how many of them were followed by another.
    """

    title: str
    status: str
    submissions: int
    started: int
    transcodes: int
    skipped: int
    kills: int
    recoveries: int
    segments: int
    problems: list[str] = field(default_factory=list)


@dataclass
class Evidence:
    """The whole of it. The demo has succeeded if `problems` is empty."""

    videos: list[VideoEvidence]
    kills: list[Kill]
    orders: int
    clicks: int
    charges: int
    schedulers: int
    reports: int
    double_transcodes: int
    double_charges: int
    double_reports: int
    stuck: int
    locks_left: list[str]
    problems: list[str]
    examples: list[Shown] = field(default_factory=list)


def gather(
    videos: Mapping[int, Clip],
    crowd: Crowd,
    killer: Killer,
    schedulers: Sequence[Process],
) -> Evidence:
    """Look at everything there is to see, once the work is over."""
    kills = killer.kills
    rows = {row.pk: row for row in Video.objects.filter(pk__in=videos)}
    lines = [
        _video(rows[pk], clip, crowd.submissions[pk], [k for k in kills if k.video == pk])
        for pk, clip in videos.items()
    ]
    orders = list(Order.objects.all())
    charges = Counter(line["key"] for line in ledger.read("charges"))
    reports = len(ledger.read("reports"))
    evidence = Evidence(
        videos=lines,
        kills=kills,
        orders=len(orders),
        clicks=sum(crowd.clicks.values()),
        charges=charges.total(),
        schedulers=len(schedulers),
        reports=reports,
        double_transcodes=sum(max(0, line.transcodes - 1) for line in lines),
        double_charges=sum(count - 1 for count in charges.values()),
        double_reports=max(0, reports - 1),
        stuck=sum(row.status == Video.Status.PROCESSING for row in rows.values()),
        locks_left=[info.name for info in locks.list()],
        problems=[f"{line.title}: {problem}" for line in lines for problem in line.problems],
    )
    problems = evidence.problems
    for order in orders:
        problems += _order_problems(order, charges[f"order-{order.pk}"])
    if (sent := DailyReport.objects.count()) != 1 or reports != 1:
        problems.append(f"the daily report was sent {reports} times, {sent} rows say so")
    for scheduler in schedulers:
        if scheduler.exit_status != 0:
            end = f"ended with {scheduler.exit_status}: {scheduler.last_lines(3)}"
            problems.append(f"{scheduler.name} {end}")
    if len(kills) < killer.wanted:
        problems.append(f"{len(kills)} of {killer.wanted} kills took place: no holder was seen")
    problems += [f"lock {name} is left" for name in evidence.locks_left]
    problems += crowd.errors
    return evidence


def _video(row: Video, clip: Clip, task_ids: Sequence[str], kills: Sequence[Kill]) -> VideoEvidence:
    started = [line for line in ledger.read("started") if line["video"] == row.pk]
    finished = [line for line in ledger.read("transcoded") if line["video"] == row.pk]
    results: list[AsyncResult[Any]] = [AsyncResult(task_id) for task_id in task_ids]
    outcomes = Counter(_outcome(result.state, result.result) for result in results)
    line = VideoEvidence(
        title=clip.title,
        status=row.status,
        submissions=len(task_ids),
        started=len(started),
        transcodes=len(finished),
        skipped=outcomes["skipped"],
        kills=len(kills),
        recoveries=sum(kill.again_after is not None for kill in kills),
        segments=len(list(_directory(row).glob("*.ts"))) if row.hls_file else 0,
    )
    problems = line.problems
    if line.transcodes != 1:
        problems.append(f"transcoded {line.transcodes} times")
    if row.status != Video.Status.READY:
        problems.append(f"its row says {row.status}")
    if line.kills != line.recoveries:
        problems.append("was killed and did not run again")
    others = {state: count for state, count in outcomes.items() if state not in ("run", "skipped")}
    if outcomes["run"] != 1 or others:
        problems.append(f"its submissions ended as {dict(outcomes)}")
    if len(finished) == 1 and f"/{finished[0]['run']}/" not in (row.hls_file or ""):
        problems.append(f"its row points to {row.hls_file}, not to the run that finished")
    problems += _file_problems(row, clip)
    return line


def _outcome(state: str, result: Any) -> str:
    if state != "SUCCESS":
        return f"{state} ({result!r})" if result else state
    return "skipped" if isinstance(result, dict) and result.get("status") == "skipped" else "run"


def _directory(row: Video) -> Path:
    return (Path(settings.MEDIA_ROOT) / str(row.hls_file)).parent


def _file_problems(row: Video, clip: Clip) -> list[str]:
    """Play the playlist by hand: it is whole, every segment is there, and so is the picture."""
    if not row.hls_file or not row.thumbnail:
        return ["it has no files"]
    playlist = (_directory(row) / ffmpeg.PLAYLIST).read_text().splitlines()
    lengths = [float(line[8:].split(",")[0]) for line in playlist if line.startswith("#EXTINF:")]
    names = [line for line in playlist if line and not line.startswith("#")]
    problems = []
    if (
        playlist[-1] != "#EXT-X-ENDLIST"
        or abs(sum(lengths) - clip.seconds) > LENGTH_TOLERANCE_SECONDS
    ):
        problems.append(f"its playlist has {sum(lengths):.1f} of {clip.seconds} seconds")
    for name in names:
        segment = _directory(row) / name
        # 0x47 begins every packet of a transport stream.
        if not segment.exists() or segment.read_bytes()[:1] != b"\x47":
            problems.append(f"{name} is missing or is no video")
    if (Path(settings.MEDIA_ROOT) / row.thumbnail).read_bytes()[:2] != b"\xff\xd8":
        problems.append("its thumbnail is no JPEG")
    return problems


def _order_problems(order: Order, charged: int) -> list[str]:
    rows = Payment.objects.filter(order=order).count()
    if (charged, rows, order.status) == (1, 1, Order.Status.PAID):
        return []
    return [f"{order}: charged {charged} times, {rows} payments, {order.status}"]
