"""Tasks whose lock an operator holds: as for any holder, but for the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_tasklock import LockNotAcquired, locks
from django_tasklock.celery import LockedTask
from django_tasklock.signals import OUTCOMES, task_not_run
from tests.celery_tasks.test_locked_task import MakeTask, on_redis, task
from tests.steps import LONG, Meanwhile, sent, waiting
from tests.waiting import until

__all__ = ["on_redis", "task"]
pytestmark = pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")


def process(self: Any, video: int) -> str:
    return f"done {video}"


def hold() -> None:
    assert locks.hold("video:7", LONG, "alice", "a migration") is not None


def test_it_is_skipped_with_the_marker(task: MakeTask) -> None:
    hold()
    marker = {
        "status": "skipped", "reason": "held_by_operator", "lock": "video:7", "holder": None,
        "held_by": "alice", "hold_reason": "a migration",
    }  # fmt: skip
    made = task(process)
    with sent(task_not_run) as told:
        assert made(7) == marker
        assert json.loads(json.dumps(made.delay(7).get())) == marker
    assert {(one["outcome"], one["reason"]) for one in told} == {("skipped", "held_by_operator")}
    assert "held_by_operator" in OUTCOMES["skipped"]
    assert locks.clear("video:7")
    assert made(7) == "done 7"


def test_it_raises_and_says_who_holds_it_and_why(task: MakeTask) -> None:
    hold()
    with pytest.raises(LockNotAcquired, match=r"operator alice \(a migration\)"):
        task(process, on_conflict="raise")(7)


def test_it_waits_until_the_hold_is_cleared(task: MakeTask) -> None:
    hold()
    made = task(process, lock_wait=LONG)
    waits = Meanwhile(lambda: made(7))
    until(lambda: waiting("video:7") == 1)
    assert locks.clear("video:7")
    assert waits.result() == "done 7"


def test_it_is_no_duplicate_of_a_hold(task: MakeTask) -> None:
    """A hold is no run of the job: a unique call is sent, and waits or is skipped later."""
    from django_tasklock.celery.unique import Reservation

    made = task(process, unique_while="unfinished")
    assert isinstance(made, LockedTask)
    hold()
    assert Reservation(made, "video:7", "id-1").take(60) is None
