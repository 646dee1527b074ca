"""A redelivered part of a chord: its body runs once, and does not wait for ever."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from celery import chord
from celery.result import denied_join_result

from django_tasklock._compat.celery import counts_parts_once
from tests.mailroom import Mailroom
from tests.servers import RedisServer
from tests.steps import killed_in_child

# Of Celery's backend for results in Redis.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


@pytest.fixture
def results(room: Mailroom, redis_server: RedisServer) -> Iterator[Any]:
    """Where the results are: on a server, which a killed process does not take along."""
    room.app.conf.update(result_backend=redis_server.url)
    backend: Any = room.app.backend
    if not counts_parts_once(backend):
        pytest.skip("this Celery counts a part of a chord twice")
    # Nothing waits for results here, and what is left of them must not look for their server.
    backend.remove_pending_result = lambda result: result
    with denied_join_result():
        yield backend
    backend.client.connection_pool.disconnect()


@pytest.mark.parametrize("counted", [False, True], ids=["killed before it counts", "counted"])
@pytest.mark.parametrize("which", ["first", "last"])
def test_the_body_runs_once(room: Mailroom, results: Any, counted: bool, which: str) -> None:
    gathered: list[list[str]] = []

    def gather(done: list[str]) -> None:
        gathered.append(done)

    # Given a chord of which one part is delivered again when its result is stored
    part = room.task(acks_late=True)
    body = results.app.task(gather, name="gather", shared=False)
    chord([part.s(1), part.s(2)])(body.s())
    parts = [room.take(), room.take()]
    again = parts[0 if which == "first" else 1]

    def killed() -> None:
        results.on_chord_part_return = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        room.deliver(again)

    for each in parts:
        if each is again and not counted:
            killed_in_child(killed)
        else:
            room.deliver(each)

    # When it is dropped
    state, _ = room.deliver(again, redelivered=True)
    assert state == "IGNORED"

    # I expect the chord's body to run, and to run once
    room.work_off()
    assert gathered == [["done:1", "done:2"]]
