"""The job this whole project is about: a video is transcoded exactly once.

The lock says who may run now; the row says whether there is still work.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from celery import shared_task
from django.conf import settings
from django.db.models import Q

from django_tasklock import StatusConflict
from django_tasklock.celery import LockedTask
from django_tasklock.guards import StatusGuard
from example_project.videos import ffmpeg, ledger
from example_project.videos.models import Video

LOCK_TTL_SECONDS = 30  # seconds; renewed while the task runs, so a job may be much longer than this


@shared_task(
    base=LockedTask,
    bind=True,
    # The message goes away only after the work is done, and goes back when the worker was killed.
    acks_late=True,
    reject_on_worker_lost=True,
    lock_name="video:{video_id}",
    lock_ttl=LOCK_TTL_SECONDS,
    # Another message for the same video, while this one runs, has nothing to add.
    on_conflict="skip",
    guard=StatusGuard(
        "videos.Video",
        pk="video_id",
        field="status",
        source=["uploaded"],
        to="processing",
        done="ready",
        failed="failed",
        # An upload that already has its result needs no run. (A row in "processing" that has one
        # was left by a run that was killed after publishing; whoever holds the lock may claim it.)
        exclude=Q(hls_file__isnull=False),
        fence_field="lock_fence",
    ),
)
def transcode(self: LockedTask, video_id: int) -> dict[str, object]:
    """Make the HLS segments and the thumbnail of one video."""
    video = Video.objects.get(pk=video_id)
    if video.hls_file:
        # The run before this one was killed between publishing and the end. Its result stands.
        return {"video": video_id, "hls_file": video.hls_file}

    # A directory of this lease's own. Should an older ffmpeg still be alive somewhere, it has
    # another one, and can spoil nothing here.
    run = str(self.lease.fence or self.lease.token)
    folder = Path("hls") / str(video_id)
    unfinished = Path(settings.MEDIA_ROOT) / folder / f"{run}.part"
    unfinished.mkdir(parents=True)

    ledger.append("started", video=video_id, run=run, task_id=self.request.id)
    try:
        ffmpeg.to_hls(Path(video.file.path), unfinished, on_progress=self.lease.assert_held)
        ledger.append("transcoded", video=video_id, run=run, task_id=self.request.id)
        finished = unfinished.rename(unfinished.with_suffix(""))
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    # One UPDATE publishes, and only for the lease that still holds the row.
    published = Video.objects.filter(
        pk=video_id, status=Video.Status.PROCESSING, lock_fence=self.lease.fence
    ).update(
        hls_file=str(folder / run / ffmpeg.PLAYLIST),
        thumbnail=str(folder / run / ffmpeg.THUMBNAIL),
    )
    if not published:
        shutil.rmtree(finished)
        raise StatusConflict("videos.Video", video_id)  # a later lease has claimed it
    remove_abandoned()
    return {"video": video_id, "hls_file": str(folder / run / ffmpeg.PLAYLIST)}


def remove_abandoned() -> None:
    """Delete what killed runs left behind.

    A live run writes into its directory all the time. One that nothing was written to for longer
    than a lease lives has no run any more.
    """
    for directory in Path(settings.MEDIA_ROOT).glob("hls/*/*.part"):
        try:
            last_write = max(path.stat().st_mtime for path in (directory, *directory.iterdir()))
        except FileNotFoundError:
            continue  # it was a live one, and has just finished
        if time.time() - last_write > LOCK_TTL_SECONDS:
            shutil.rmtree(directory, ignore_errors=True)
