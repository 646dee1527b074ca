"""The story: two workers, people who click too often, and somebody who kills processes."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from celery.result import AsyncResult
from celery.signals import after_task_publish
from django.conf import settings
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_tasklock import LockInfo, locks
from example_project.demo.clips import Clip, make_clips
from example_project.demo.screen import Screen
from example_project.processes import Process, ending, start_worker, wait_for_workers
from example_project.uses.crew import Shown, crew_of, in_threads
from example_project.videos import ledger
from example_project.videos.ffmpeg import SEGMENT_SECONDS
from example_project.videos.models import Video

DEADLINE_SECONDS = 180.0  # seconds for all the work, on a machine that is busy with other things
LAST_RELEASE_SECONDS = 5.0  # seconds for the last locks to go, once all work has its outcome
KILLS = 2
EXAMPLE_PROCESSES = 4


@dataclass
class Kill:
    """One SIGKILL to the process that transcoded a video; `again_after` is in seconds, and None if
    the job did not run again."""

    video: int
    pid: int
    at: float
    again_after: float | None = None


class Story:
    """What is asked of the site and what is done to it, through its real views and processes."""

    def __init__(self, screen: Screen, state: Path) -> None:
        self.screen = screen
        self.state = state
        self.clips: dict[int, Clip] = {}  # by the video's pk, like the next one
        self.submissions: dict[int, list[str]] = defaultdict(list)
        self.schedulers: list[Process] = []
        self.kills: list[Kill] = []
        self.refused_clicks: list[str] = []
        after_task_publish.connect(self._published)

    def play(self, videos: int, submissions: int) -> None:
        """Play it all.

        Raises:
            NotReady: a worker did not come up.
        """
        logs = self.state / "logs"
        workers = [start_worker(f"{name}@example", logs) for name in ("one", "two")]
        with ending(workers):
            clips = make_clips(videos, self.state / "clips")
            total = sum(clip.seconds for clip in clips)
            self.screen.say(f"{len(clips)} clips made, {total} seconds of video")
            wait_for_workers(workers)
            pids = " and ".join(str(worker.pid) for worker in workers)
            self.screen.say(f"two Celery workers are ready (processes {pids})")
            # As cron does on several hosts.
            report = [sys.executable, "-m", "example_project.manage", "daily_report"]
            report += ["--date", str(timezone.localdate())]
            for name in ("cron1", "cron2"):
                self.schedulers.append(Process(name, report, logs / f"{name}.log"))
            with ending(self.schedulers):
                self._click(clips, submissions)
                self._watch({worker.pid for worker in workers})

    def _click(self, clips: Sequence[Clip], submissions: int) -> None:
        """Upload each clip, and have it sent again and again."""
        for clip in clips:
            with clip.path.open("rb") as file:
                self._post("upload", data={"title": clip.title, "file": file})
            video: Video = Video.objects.get(title=clip.title)
            self.clips[video.pk] = clip
            in_threads(submissions - 1, lambda _: self._post("start", video.pk))  # noqa: B023
        self.screen.say(f"{len(clips)} videos uploaded, each submitted {submissions} times at once")

    def _post(self, view: str, *args: int, data: Any = None) -> None:
        url = reverse(f"videos:{view}", args=args)
        status = Client(raise_request_exception=False).post(url, data or {}).status_code
        if status != HTTPStatus.FOUND:
            self.refused_clicks.append(f"POST {url}: {status}")

    def _published(self, headers: dict[str, Any], body: Any, **_: object) -> None:
        (video_id, *_rest), *_more = body
        self.submissions[video_id].append(headers["id"])

    def _watch(self, workers: set[int]) -> None:
        """Show and kill until everything submitted has an outcome, or the time is up."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        late: set[int] = set()
        with self.screen.live():
            while time.monotonic() < deadline:
                settled = self._settled()  # Asked first: what is read now is newer than that.
                held, videos = locks.list(), list(Video.objects.order_by("pk"))
                self.screen.show([video.status for video in videos], held)
                self._see_recoveries()
                waiting = sum(video.status == Video.Status.UPLOADED for video in videos)
                self._kill_one_of(held, workers, waiting)
                ready = {video.pk for video in videos if video.status == Video.Status.READY}
                for pk in ready - late:
                    self._post("start", pk)  # one that comes too late
                if settled and ready == late:
                    if not held:
                        return
                    # The last release comes a moment after the result. What stays is evidence.
                    deadline = min(deadline, time.monotonic() + LAST_RELEASE_SECONDS)
                late |= ready
                time.sleep(0.2)
        self.screen.say("the time is up")

    def _settled(self) -> bool:
        """Whether everything that was submitted has an outcome, be it a failure."""
        return all(each.exit_status is not None for each in self.schedulers) and all(
            AsyncResult(task).ready() for ids in self.submissions.values() for task in ids
        )

    def _kill_one_of(self, held: Sequence[LockInfo], workers: set[int], waiting: int) -> None:
        """SIGKILL a pool child in mid-transcode: the first time while other videos wait in the
        queue, and the second time when none does and the first victim's job runs again.

        Its message goes behind those that wait: Celery gives a lost worker's message to the end of
        a Redis queue.
        """
        if len(self.kills) == KILLS or (
            self.kills and (waiting or self.kills[0].again_after is None)
        ):
            return
        for info in held:
            kind, _, pk = info.name.partition(":")
            if kind != "video" or info.owner.pid is None:
                continue
            folder = Path(settings.MEDIA_ROOT, "hls", pk, f"{info.fence or info.token}.part")
            written = len(list(folder.glob("*.ts")))
            if not 2 <= written <= self.clips[int(pk)].seconds // SEGMENT_SECONDS - 2:
                continue  # so early or so late is not in the middle
            kill = Kill(int(pk), info.owner.pid, time.time())
            with contextlib.suppress(ProcessLookupError):
                # A child is in the process group of the worker that forked it.
                if os.getpgid(kill.pid) in workers:
                    os.kill(kill.pid, signal.SIGKILL)
                    self.kills.append(kill)
                    self.screen.say(
                        f"SIGKILL to process {kill.pid}, which transcodes {info.name} "
                        f"({written} segments written; {waiting} videos wait in the queue)"
                    )
                    return

    def _see_recoveries(self) -> None:
        """Compare the kills with what the runs have written down."""
        for kill in self.kills:
            after = [
                line
                for line in ledger.read("started")
                if line["video"] == kill.video and line["at"] > kill.at
            ]
            if after and kill.again_after is None:
                kill.again_after = after[0]["at"] - kill.at
                self.screen.say(
                    f"video:{kill.video} runs again, in process {after[0]['pid']}, "
                    f"{kill.again_after:.2f} s later"
                )


def show_uses(screen: Screen, state: Path, uses: Sequence[str]) -> list[Shown]:
    """Run these examples of `example_project.uses`, and say what they came to.

    Raises:
        NotReady: a process of an example did not come up.
    """
    everything = []
    with crew_of(EXAMPLE_PROCESSES, state / "logs") as crew:
        screen.say(f"more examples, with {EXAMPLE_PROCESSES} processes (example_project/uses/):")
        for use in uses:
            shown: Shown = importlib.import_module(f"example_project.uses.{use}").show(crew)
            shown.problems += [f"lock {info.name} is left" for info in locks.list()]
            screen.say(f"  {shown.title + ':':<16} {shown.found}")
            everything.append(shown)
    return everything
