"""The signal `task_not_run`: what becomes of calls that do not run, each with its reason."""

from __future__ import annotations

from typing import Any

import pytest

from django_tasklock import LockNotAcquired, StoreUnavailable, lock, locks
from django_tasklock._values import clock
from django_tasklock.celery import by
from django_tasklock.exceptions import AlreadyQueued
from django_tasklock.signals import OUTCOMES, lock_acquired, lock_released, task_not_run
from django_tasklock.testing import outage
from tests.mailroom import Mailroom, elsewhere
from tests.steps import sent


def outcomes(told: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Each outcome with its reason; all of them are of the closed set."""
    assert all(one["reason"] in OUTCOMES[one["outcome"]] for one in told)
    return [(one["outcome"], one["reason"]) for one in told]


def test_a_skip_says_what_was_skipped_and_why(room: Mailroom) -> None:
    task = room.task()
    task.delay(1)
    with sent(task_not_run) as told, lock("job:1", ttl=60):
        message = room.take()
        assert room.deliver(message)[0] == "SUCCESS"
    assert outcomes(told) == [("skipped", "already_processing")]
    (skipped,) = told
    assert (skipped["task"], skipped["task_id"]) == (task.name, message.id)
    assert (skipped["name"], skipped["template"]) == ("job:1", "job:{job}")
    assert (skipped["store"], skipped["sender"]) == ("default", type(task))


def test_a_call_that_runs_sends_nothing(room: Mailroom) -> None:
    room.task().delay(1)
    with sent(task_not_run) as told:
        assert room.work_off() == [("SUCCESS", "done:1")]
    assert told == []


def test_a_message_that_waits_for_the_lock_is_requeued_each_time(room: Mailroom) -> None:
    task = room.task(on_conflict="retry")
    task.delay(1)
    with sent(task_not_run) as told:
        with lock("job:1", ttl=60):
            for _ in range(2):
                assert room.deliver(room.take())[0] == "IGNORED"
        assert room.work_off() == [("SUCCESS", "done:1")]
    assert outcomes(told) == [("requeued", "held")] * 2
    assert {one["name"] for one in told} == {"job:1"}


def test_a_message_that_an_outage_sends_back_is_requeued_for_it(room: Mailroom) -> None:
    room.task().delay(1)
    with sent(task_not_run) as told, outage():
        assert room.deliver(room.take())[0] == "IGNORED"
    assert outcomes(told) == [("requeued", "outage")]


@pytest.mark.parametrize("options", [{"on_conflict": "raise"}, {"on_conflict": "retry"}])
def test_a_call_that_may_not_wait_any_more_is_given_up(
    room: Mailroom, options: dict[str, Any]
) -> None:
    task = room.task(lock_retry_for=0, **options)
    task.delay(1)
    with sent(task_not_run) as told, lock("job:1", ttl=60):
        state, error = room.deliver(room.take())
    assert (state, type(error)) == ("FAILURE", LockNotAcquired)
    assert outcomes(told) == [("given_up", "held")]


def test_a_call_without_an_answer_of_the_store_is_given_up(room: Mailroom) -> None:
    room.task(on_outage="raise").delay(1)
    with sent(task_not_run) as told, outage():
        state, error = room.deliver(room.take())
    assert (state, type(error)) == ("FAILURE", StoreUnavailable)
    assert outcomes(told) == [("given_up", "outage")]


def test_a_follow_up_is_requeued_and_later_calls_are_coalesced(room: Mailroom) -> None:
    task = room.task(on_conflict="coalesce")
    for _ in range(3):
        task.delay(1)
    with sent(task_not_run) as told, lock("job:1", ttl=60):
        for _ in range(3):
            elsewhere(room, room.take())
    assert sorted(outcomes(told)) == [
        ("coalesced", "follow_up"), ("coalesced", "follow_up"), ("requeued", "held"),
    ]  # fmt: skip


def test_a_duplicate_is_told_by_its_sender(room: Mailroom) -> None:
    task = room.task(unique_while="queued", on_duplicate="raise")
    first = task.delay(1)
    with sent(task_not_run) as told, pytest.raises(AlreadyQueued):
        task.delay(1)
    assert outcomes(told) == [("duplicate", "queued")]
    assert told[0]["task_id"] == first.id


def test_a_run_that_lost_its_lease_is_requeued_and_at_last_given_up(room: Mailroom) -> None:
    def work(self: Any, job: Any) -> None:
        self.lease._deadline = clock.now() - 1
        self.lease.assert_held()

    task = room.task(work, acks_late=True, lock_max_attempts=1)
    task.delay(1)
    with sent(task_not_run) as told:
        assert [state for state, _ in room.work_off()] == ["IGNORED", "FAILURE"]
    assert outcomes(told) == [("requeued", "lease_lost"), ("given_up", "too_many_attempts")]


def test_a_redelivery_of_a_run_that_has_ended_is_dropped(room: Mailroom) -> None:
    room.task(acks_late=True).delay(1)
    message = room.take()
    assert room.deliver(message)[0] == "SUCCESS"
    with sent(task_not_run) as told:
        assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert outcomes(told) == [("dropped", "redelivery")]


@pytest.mark.parametrize("lock_name", ["job:{job}", by("job"), None])
def test_the_lease_of_a_run_has_the_template(room: Mailroom, lock_name: Any) -> None:
    task = room.task(lock_name=lock_name)
    task.delay(1)
    with sent(lock_acquired) as acquired, sent(lock_released) as released:
        assert room.work_off() == [("SUCCESS", "done:1")]
    assert [one["template"] for one in (*acquired, *released)] == [task.name_template] * 2


def test_a_run_beside_the_holder_counts_under_a_name_of_its_own(room: Mailroom) -> None:
    task = room.task(on_conflict="run", acks_late=True)
    task.delay(1)
    with lock("job:1", ttl=60), sent(lock_acquired) as acquired:
        assert room.work_off() == [("SUCCESS", "done:1")]
    assert [one["template"] for one in acquired] == ["beside:{task_id}"]


def test_a_run_that_adopts_its_callers_lease_gives_it_the_template(room: Mailroom) -> None:
    task = room.task()
    lease = locks.acquire("job:1", ttl=60)
    task.apply_async((1,), lease=lease)
    with sent(lock_released) as released:
        assert room.work_off() == [("SUCCESS", "done:1")]
    assert [one["template"] for one in released] == ["job:{job}"]


def test_every_kind_of_lock_name_has_a_template_without_values(room: Mailroom) -> None:
    named = {
        "job:{job}": "job:{job}",
        None: "{task}:{{arguments}}",
        by("job", "other"): "{task}:{{job}}:{{other}}",
    }
    for name, template in named.items():
        task = room.task(lock_name=name)
        expected = template if name == "job:{job}" else template.format(task=task.name)
        assert task.name_template == expected
    task = room.task(lock_name=lambda job, other=None: f"of {job}")
    assert task.name_template == f"{task.name}:{{lock_name}}"


def test_a_receiver_that_fails_changes_nothing(room: Mailroom) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("a receiver of somebody's")

    room.task().delay(1)
    task_not_run.connect(broken)
    try:
        with lock("job:1", ttl=60):
            state, marker = room.deliver(room.take())
    finally:
        task_not_run.disconnect(broken)
    assert (state, marker["reason"]) == ("SUCCESS", "already_processing")
