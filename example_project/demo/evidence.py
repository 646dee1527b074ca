"""Counts what happened, from the ledgers, the files and the rows, and says what is wrong."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import imageio_ffmpeg
from celery.result import AsyncResult
from django.conf import settings

from django_tasklock import locks
from example_project.demo.clips import Clip
from example_project.demo.story import KILLS, Story
from example_project.videos import ledger
from example_project.videos.models import DailyReport, Video

LENGTH_TOLERANCE_SECONDS = 0.5  # seconds; sound and picture do not end on the same frame


def gather(story: Story) -> dict[str, Any]:
    """Look at everything there is to see, once the work is over. The demo has succeeded if there
    are no ``problems``."""
    videos = [_video(story, pk) for pk in story.clips]
    reports, rows = len(ledger.read("reports")), DailyReport.objects.count()
    locks_left = [info.name for info in locks.list()]
    problems = [f"{each['video']}: {problem}" for each in videos for problem in each["problems"]]
    problems += [f"lock {name} is left" for name in locks_left]
    problems += story.refused_clicks
    if (reports, rows) != (1, 1):
        problems.append(f"the daily report was sent {reports} times, {rows} rows say so")
    for each in story.schedulers:
        if each.exit_status != 0:
            problems.append(f"{each.name} ended with {each.exit_status}: {each.last_lines(3)}")
    if len(story.kills) < KILLS:
        problems.append(f"{len(story.kills)} of {KILLS} kills took place: no holder was seen")
    return {
        "videos": videos,
        "kills": [dataclasses.asdict(kill) for kill in story.kills],
        "submissions": sum(video["submissions"] for video in videos),
        "transcodes": sum(video["transcodes"] for video in videos),
        "double_transcodes": sum(max(0, video["transcodes"] - 1) for video in videos),
        "schedulers": len(story.schedulers),
        "reports": reports,
        "double_reports": max(0, reports - 1),
        "stuck": Video.objects.filter(status=Video.Status.PROCESSING).count(),
        "locks_left": locks_left,
        "problems": problems,
    }


def _video(story: Story, pk: int) -> dict[str, Any]:
    """One line of the final table: how often an ffmpeg was started for a video and finished, what
    became of its submissions, and of its runs that were killed."""
    row, clip = Video.objects.get(pk=pk), story.clips[pk]
    started, finished = (
        [line for line in ledger.read(name) if line["video"] == pk]
        for name in ("started", "transcoded")
    )
    outcomes = Counter(_outcome(AsyncResult(task_id)) for task_id in story.submissions[pk])
    again = [kill.again_after is not None for kill in story.kills if kill.video == pk]
    problems = [*_file_problems(row, clip)]
    if len(finished) != 1:
        problems.append(f"transcoded {len(finished)} times")
    elif f"/{finished[0]['run']}/" not in (row.hls_file or ""):
        problems.append(f"its row points to {row.hls_file}, not to the run that finished")
    if row.status != Video.Status.READY:
        problems.append(f"its row says {row.status}")
    if not all(again):
        problems.append("was killed and did not run again")
    if outcomes["run"] != 1 or outcomes["run"] + outcomes["skipped"] != outcomes.total():
        problems.append(f"its submissions ended as {dict(outcomes)}")
    return {
        "video": clip.title,
        "status": row.status,
        "submissions": len(story.submissions[pk]),
        "started": len(started),
        "transcodes": len(finished),
        "skipped": outcomes["skipped"],
        "kills": len(again),
        "recoveries": sum(again),
        "problems": problems,
    }


def _outcome(result: AsyncResult[Any]) -> str:
    value = result.result
    if result.state != "SUCCESS":
        return f"{result.state} ({value!r})"
    return "skipped" if isinstance(value, dict) and value.get("status") == "skipped" else "run"


def _file_problems(row: Video, clip: Clip) -> Iterator[str]:
    """Have ffmpeg play the result: every segment is there, and so is the picture."""
    if not row.hls_file or not row.thumbnail:
        yield "it has no files"
        return
    _, seconds = imageio_ffmpeg.count_frames_and_secs(f"{settings.MEDIA_ROOT}/{row.hls_file}")
    if abs(seconds - clip.seconds) > LENGTH_TOLERANCE_SECONDS:
        yield f"{seconds:.1f} of {clip.seconds} seconds of it can be played"
    if not Path(settings.MEDIA_ROOT, row.thumbnail).exists():
        yield "its thumbnail is missing"
