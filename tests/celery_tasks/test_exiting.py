"""The exit of a worker's process, while a run of another thread or greenlet ends."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from django_tasklock import Lease, locks
from django_tasklock.celery import exiting
from tests.mailroom import Mailroom, killed_before_release
from tests.steps import Meanwhile


@pytest.mark.parametrize("handed_on", [False, True], ids=["", "handed on"])
@pytest.mark.parametrize("delivery", ["first", "redelivery", "after a death"])
def test_a_run_that_ends_meanwhile_is_not_repeated(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch, delivery: str, handed_on: bool
) -> None:
    room.app.conf.task_ignore_result = True
    begun, go_on, ends = threading.Event(), threading.Event(), []

    def work(self: Any, job: Any) -> None:
        if handed_on:
            self.lease.detach()
        begun.set()
        go_on.wait()
        ends.append(job)

    # Given a message whose run, in another thread, is about to end
    room.task(work, acks_late=True).delay(1)
    message = room.take()
    if delivery == "after a death":
        go_on.set()
        killed_before_release(room, message)
        go_on.clear()
    run = Meanwhile(lambda: room.deliver(message, redelivered=delivery != "first"))
    assert begun.wait(20)

    # When it does, just after the exit has seen that it holds its lease
    held: Any = Lease.held

    def looked_at(lease: Lease) -> bool:
        found = held.fget(lease)
        if threading.current_thread() is threading.main_thread():
            go_on.set()
            assert run.result()[0] == "SUCCESS"
        return bool(found)

    with monkeypatch.context() as patched:
        patched.setattr(Lease, "held", property(looked_at))
        exiting._take_starts_back()
    locks.clear("job:1")  # Nobody adopts what was handed on.

    # I expect the message to be dropped when the broker delivers it again
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert room.waiting() == []
    assert ends == [1]
