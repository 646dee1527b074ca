"""People who click too often, all at the same moment, through the site's real views."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from celery.signals import after_task_publish
from django.db import connections
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from example_project.demo.clips import Clip
from example_project.processes import START_SECONDS, NotReady, Process
from example_project.videos.models import Order, Video


class Crowd:
    """Clicks from many threads, and remembers what was sent.

    Attributes:
        submissions: the task ids sent for each video's pk.
        clicks: how often each order's button was clicked.
        errors: clicks that the site did not answer as it should.
    """

    def __init__(self) -> None:
        self.submissions: dict[int, list[str]] = defaultdict(list)
        self.clicks: dict[int, int] = defaultdict(int)
        self.errors: list[str] = []
        self._threads: list[threading.Thread] = []
        after_task_publish.connect(self._published)

    def busy(self) -> bool:
        """Whether any click still waits for its answer."""
        return any(thread.is_alive() for thread in self._threads)

    def upload(self, clip: Clip) -> Video:
        """Upload one clip through the form, which submits it for the first time."""
        with clip.path.open("rb") as file:
            self._post(reverse("videos:upload"), {"title": clip.title, "file": file})
        video: Video = Video.objects.get(title=clip.title)
        return video

    def submit(self, video: Video, times: int) -> None:
        """Click "Send again", `times` times at once."""
        self._at_once(lambda: self._post(reverse("videos:start", args=[video.pk])), times)

    def pay(self, order: Order, times: int) -> None:
        """Click "Pay", `times` times at once."""
        self.clicks[order.pk] += times
        self._at_once(lambda: self._post(reverse("videos:pay", args=[order.pk])), times)

    def _post(self, url: str, data: dict[str, Any] | None = None) -> None:
        response = Client().post(url, data or {})
        if response.status_code != HTTPStatus.FOUND:
            raise RuntimeError(f"POST {url}: {response.status_code}")

    def _at_once(self, click: Callable[[], None], times: int) -> None:
        barrier = threading.Barrier(times)

        def person() -> None:
            try:
                barrier.wait()
                click()
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}")
            finally:
                connections.close_all()

        for _ in range(times):
            thread = threading.Thread(target=person, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _published(self, headers: dict[str, Any], body: Any, **_: object) -> None:
        (video_id, *_rest), *_more = body
        self.submissions[video_id].append(headers["id"])


class Schedulers:
    """Processes that all send today's report in the same moment, as cron does on several hosts.

    Attributes:
        processes: as they were started.
    """

    def __init__(self, count: int, logs: Path) -> None:
        self._moment = logs / "send-the-reports-now"
        command = [
            *(sys.executable, "-m", "example_project.manage", "daily_report"),
            *("--date", str(timezone.localdate()), "--when", str(self._moment)),
        ]
        self.processes = [
            Process(f"scheduler{number}", command, logs / f"scheduler{number}.log")
            for number in range(1, count + 1)
        ]

    def go(self, seconds: float = START_SECONDS) -> None:
        """Have the reports sent, once every process is ready.

        Raises:
            NotReady: one is not ready within `seconds`.
        """
        deadline = time.monotonic() + seconds
        for process in self.processes:
            while not (ready := "waiting" in process.last_lines()) and time.monotonic() < deadline:
                time.sleep(0.05)
            if not ready:
                raise NotReady(
                    f"{process.name} is not ready. Its log ends:\n{process.last_lines()}"
                )
        self._moment.touch()
