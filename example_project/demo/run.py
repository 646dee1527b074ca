"""The story: two workers, people who click too often, and somebody who kills processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from celery.result import AsyncResult
from django.conf import settings
from django.core.management import call_command

from django_tasklock import locks
from example_project.demo.clips import Clip, make_clips
from example_project.demo.crowd import Crowd, Schedulers
from example_project.demo.evidence import Evidence, gather
from example_project.demo.killer import Killer
from example_project.demo.screen import Screen
from example_project.processes import Process, ending, start_worker, wait_for_workers
from example_project.videos.ffmpeg import SEGMENT_SECONDS
from example_project.videos.models import Order, Video

DEADLINE_SECONDS = 180.0  # seconds for all the work, on a machine that is busy with other things
LAST_RELEASE_SECONDS = 5.0  # seconds for the last locks to go, once all work has its outcome
SCHEDULERS = 2
ORDERS = 3
CLICKS = 8


def run(screen: Screen, state: Path, *, videos: int, submissions: int) -> Evidence:
    """Play it all and return what was found.

    Raises:
        NotReady: a worker did not come up.
    """
    for database in settings.DATABASES:
        call_command("migrate", database=database, verbosity=0)
    workers = [start_worker(f"{name}@example", state / "logs") for name in ("one", "two")]
    schedulers = Schedulers(SCHEDULERS, state / "logs")
    with ending([*workers, *schedulers.processes]):
        clips = make_clips(videos, state / "clips")
        total = sum(clip.seconds for clip in clips)
        screen.say(f"{len(clips)} clips made, {total} seconds of video")
        wait_for_workers(workers)
        screen.say(f"two Celery workers are ready (processes {workers[0].pid}, {workers[1].pid})")
        return _play(screen, workers, schedulers, clips, submissions)


def _play(
    screen: Screen,
    workers: Sequence[Process],
    schedulers: Schedulers,
    clips: Sequence[Clip],
    submissions: int,
) -> Evidence:
    crowd = Crowd()
    uploaded: dict[int, Clip] = {}
    for clip in clips:
        video = crowd.upload(clip)
        crowd.submit(video, submissions - 1)
        uploaded[video.pk] = clip
    screen.say(f"{len(clips)} videos uploaded, each submitted {submissions} times at once")
    for number in range(ORDERS):
        order = Order.objects.create(title=f"order {number + 1}", amount=Decimal("9.90"))
        crowd.pay(order, CLICKS)
    schedulers.go()
    screen.say(f"{ORDERS} orders, the payment button of each clicked {CLICKS} times at once")

    segments = {pk: clip.seconds // SEGMENT_SECONDS for pk, clip in uploaded.items()}
    killer = Killer(workers, segments)
    _watch(screen, crowd, killer, schedulers.processes)
    return gather(uploaded, crowd, killer, schedulers.processes)


def _watch(screen: Screen, crowd: Crowd, killer: Killer, schedulers: Sequence[Process]) -> None:
    """Show and kill until everything submitted has an outcome, or the time is up."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    late: set[int] = set()
    recovered = 0
    settled = False
    with screen.live():
        while time.monotonic() < deadline:
            held = locks.list()
            videos = list(Video.objects.order_by("pk"))
            screen.show(videos, held)
            killer.see_recoveries()
            for victim in killer.kills[recovered:]:
                if victim.again_after is not None:
                    recovered += 1
                    screen.say(
                        f"video:{victim.video} runs again, in process {victim.again_pid}, "
                        f"{victim.again_after:.2f} s later"
                    )
            waiting = sum(video.status == Video.Status.UPLOADED for video in videos)
            if kill := killer.look(held, waiting=waiting):
                screen.say(
                    f"SIGKILL to process {kill.pid}, which transcodes video:{kill.video} "
                    f"({kill.segments} segments written)"
                )
            for video in videos:
                if video.status == Video.Status.READY and video.pk not in late:
                    late.add(video.pk)
                    crowd.submit(video, 1)  # one that comes too late
            # Twice in a row: the rows and locks above are then newer than the last outcome.
            before, settled = settled, _settled(crowd, schedulers)
            if before and settled:
                if not held:
                    return
                # The last release comes a moment after the result. A lock that stays is evidence.
                deadline = min(deadline, time.monotonic() + LAST_RELEASE_SECONDS)
            time.sleep(0.2)
    screen.say("the time is up")


def _settled(crowd: Crowd, schedulers: Sequence[Process]) -> bool:
    """Whether everything that was submitted has an outcome, be it a failure."""
    return (
        not crowd.busy()
        and all(scheduler.exit_status is not None for scheduler in schedulers)
        and all(AsyncResult(task).ready() for ids in crowd.submissions.values() for task in ids)
    )
