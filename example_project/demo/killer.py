"""Ends pool children by SIGKILL in mid-transcode, and sees the job run again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from django_tasklock import LockInfo
from example_project.processes import Process
from example_project.videos import ledger


@dataclass
class Kill:
    """One SIGKILL.

    Attributes:
        video: the pk of the video whose job was ended.
        pid: the pool child.
        segments: how many segments its ffmpeg had written by then.
        waiting: how many other videos were in the queue. Its message goes behind them: Celery
            gives a lost worker's message to the end of a Redis queue.
        at: seconds since the epoch.
        again_after: seconds until the next run of the job began; None if there was none.
        again_pid: the process of that run.
    """

    video: int
    pid: int
    segments: int
    waiting: int
    at: float
    again_after: float | None = None
    again_pid: int | None = None


class Killer:
    """Kills twice: once while other videos wait in the queue, and once when none does.

    Args:
        workers: only their pool children are killed.
        segments: how many each video, by its pk, will have in the end.
    """

    wanted = 2

    def __init__(self, workers: Sequence[Process], segments: Mapping[int, int]) -> None:
        self.kills: list[Kill] = []
        self._groups = {worker.pid for worker in workers}
        self._segments = segments

    def look(self, held: Sequence[LockInfo], *, waiting: int) -> Kill | None:
        """Kill one of the holders, if it is in mid-transcode and it is time for a kill.

        The second kill comes after the first victim runs again; see `see_recoveries`.

        Args:
            waiting: how many videos no run has begun with.
        """
        if len(self.kills) == self.wanted or (self.kills and (waiting or self._one_is_down())):
            return None
        for info in held:
            kind, _, pk = info.name.partition(":")
            if kind != "video" or info.owner.pid is None or not self._is_ours(info.owner.pid):
                continue
            written = _written(int(pk), str(info.fence or info.token))
            if not 2 <= written <= self._segments[int(pk)] - 2:
                continue  # so early or so late is not in the middle
            kill = Kill(int(pk), info.owner.pid, written, waiting, time.time())
            os.kill(kill.pid, signal.SIGKILL)
            self.kills.append(kill)
            return kill
        return None

    def see_recoveries(self) -> None:
        """Fill in `again_after` and `again_pid` from what the runs wrote down."""
        started = ledger.read("started")
        for kill in self.kills:
            for line in started:
                if line["video"] == kill.video and line["at"] > kill.at:
                    kill.again_after = line["at"] - kill.at
                    kill.again_pid = line["pid"]
                    break

    def _one_is_down(self) -> bool:
        return any(kill.again_after is None for kill in self.kills)

    def _is_ours(self, pid: int) -> bool:
        """A child is in the process group of the worker that forked it."""
        try:
            return pid not in self._groups and os.getpgid(pid) in self._groups
        except ProcessLookupError:
            return False


def _written(video: int, run: str) -> int:
    directory = Path(settings.MEDIA_ROOT) / "hls" / str(video) / f"{run}.part"
    return len(list(directory.glob("*.ts")))
