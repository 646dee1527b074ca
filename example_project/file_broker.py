"""Celery's messages as files in a folder: kombu's filesystem transport, safe for several processes.

kombu's own writes a message under the name by which workers look for it. A worker that looks at
that very moment takes an empty file: it ends with an error, and the message is lost. (Of 2000
messages to two busy consumers it happened to 16.) Here a message gets its name once it is whole,
and the tables of queues are read and written by one process at a time.

A message's file is removed when a worker takes it. A worker that ends by itself puts back what it
has not done, and one whose pool child was killed puts back that child's message. When its main
process is killed, its messages are gone: ``manage.py locks doctor --requeue`` finds the rows that
it had begun with, and sends their tasks again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from time import monotonic_ns
from typing import Any

from kombu.transport import filesystem
from kombu.utils.json import dumps

__all__ = ["Channel", "Transport", "options_for"]


def options_for(folder: Path) -> dict[str, Any]:
    """Make the folders; return ``CELERY_BROKER_TRANSPORT_OPTIONS`` for them."""
    queues, control, taken = (folder / name for name in ("queues", "control", "taken"))
    for each in (queues, control, taken):
        each.mkdir(parents=True, exist_ok=True)
    return {
        "data_folder_in": str(queues),
        "data_folder_out": str(queues),
        "control_folder": str(control),
        # On the same file system, where a file moves to one process alone. By default it is the
        # system's folder of temporary files, and what is copied there two processes may take.
        "processed_folder": str(taken),
        "store_processed": True,
        "polling_interval": 0.1,  # seconds between two looks into the folder
    }


class Channel(filesystem.Channel):
    """kombu's, but for how it writes."""

    def _put(  # type: ignore[override]  # kombu's own classes differ in the names
        self, queue: str, payload: dict[str, Any], **_: Any
    ) -> None:
        # Workers take the first name of the folder: the oldest message.
        name = f"{monotonic_ns() // 1000:020}_{uuid.uuid4()}.{queue}.msg"
        written = Path(self.processed_folder, name)
        written.write_text(dumps(payload))
        os.replace(written, Path(self.data_folder_out, name))

    def get_table(self, exchange: str) -> Any:
        with self._one_at_a_time():
            return super().get_table(exchange)

    def _queue_bind(self, *arguments: Any) -> None:
        with self._one_at_a_time():
            super()._queue_bind(*arguments)

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        with Path(self.control_folder, "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class Transport(filesystem.Transport):
    """For ``CELERY_BROKER_TRANSPORT``."""

    Channel = Channel
