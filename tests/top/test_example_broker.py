"""The example site's broker without a server: kombu's filesystem transport, mended."""

from __future__ import annotations

from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from kombu import Connection

from example_project.file_broker import options_for


@pytest.fixture
def channels(tmp_path: Path) -> tuple[Any, Any]:
    """Those of a sender and of a worker."""
    connection = Connection(
        transport="example_project.file_broker:Transport", transport_options=options_for(tmp_path)
    )
    return connection.channel(), connection.channel()


def test_messages_are_taken_whole_in_order_and_from_their_own_queue(
    channels: tuple[Any, Any],
) -> None:
    sender, worker = channels
    looks = []

    class Look:
        """A worker looks while the message is being written."""

        def __json__(self) -> str:
            with pytest.raises(Empty):
                worker._get("celery")
            looks.append("nothing there")
            return "written"

    sender._put("celery", {"body": Look()})
    assert looks
    for number in range(20):
        sender._put("celery", {"number": number})
        sender._put("other", {"number": -number})
    assert worker._get("celery") == {"body": "written"}
    assert [worker._get("celery")["number"] for _ in range(20)] == list(range(20))
    assert worker._size("other") == 20
    with pytest.raises(Empty):
        worker._get("celery")


def test_queues_are_bound_once(channels: tuple[Any, Any]) -> None:
    sender, worker = channels
    for channel in (sender, worker, sender):
        channel._queue_bind("all", "", "", "one")
        channel._queue_bind("all", "", "", "two")
    assert {each.queue for each in worker.get_table("all")} == {"one", "two"}
    assert len(sender.get_table("all")) == 2
