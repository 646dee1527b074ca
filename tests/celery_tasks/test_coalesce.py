"""on_conflict="coalesce", message by message. With workers: ``tests/celery_tasks/queue``."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from django_tasklock import lock
from django_tasklock._values import clock
from django_tasklock.exceptions import TooManyAttempts
from django_tasklock.signals import lock_released
from tests.mailroom import Mailroom, elsewhere
from tests.seeds import drawn_seed
from tests.steps import Meanwhile, taken, waiting
from tests.waiting import until

BURSTS = int(os.environ.get("COALESCE_BURSTS", "20"))


def follow_ups(room: Mailroom) -> list[str]:
    """The ids of the messages that wait for the lock."""
    return [message.id for message in room.waiting() if message.ours.get("tries")]


def test_all_that_comes_during_a_run_becomes_one_follow_up(room: Mailroom) -> None:
    runs: list[str] = []
    outcomes: list[tuple[str, Any]] = []

    def work(self: Any, job: Any) -> None:
        runs.append(self.request.id)
        if len(runs) == 1:
            sent.extend(self.delay(job).id for _ in range(5))
            outcomes.extend(elsewhere(room, room.take()) for _ in range(5))
            assert follow_ups(room) == sent[1:2]
            # It looks again and again while the run is on.
            for _ in range(3):
                assert elsewhere(room, room.take())[0] == "IGNORED"
                assert follow_ups(room) == sent[1:2]

    task = room.task(work, on_conflict="coalesce")
    sent = [task.delay(1).id]
    assert room.deliver(room.take())[0] == "SUCCESS"
    assert [state for state, _ in outcomes] == ["IGNORED", *["SUCCESS"] * 4]
    marker = {"status": "skipped", "reason": "coalesced", "lock": "job:1", "holder": sent[0]}
    assert [value for _, value in outcomes[1:]] == [marker] * 4
    assert room.work_off() == [("SUCCESS", None)]
    assert runs == sent[:2]


def test_a_run_that_started_meanwhile_does_it_for_the_follow_up(room: Mailroom) -> None:
    runs: list[str] = []

    def work(self: Any, job: Any) -> None:
        runs.append(self.request.id)
        if len(runs) == 1:
            sent.append(task.delay(job).id)
            elsewhere(room, room.take())

    task = room.task(work, on_conflict="coalesce")
    sent = [task.delay(1).id]
    room.deliver(room.take())
    newcomer = task.delay(1).id
    assert room.deliver(room.take(newcomer))[0] == "SUCCESS"
    ((state, marker),) = room.work_off()
    assert (state, marker["reason"]) == ("SUCCESS", "coalesced")
    assert runs == [sent[0], newcomer]


def test_follow_ups_of_two_tasks_under_one_lock_do_not_replace_each_other(room: Mailroom) -> None:
    runs: list[Any] = []
    first = room.task(lambda self, job: runs.append("first"), on_conflict="coalesce")
    second = room.task(lambda self, job: runs.append("second"), on_conflict="coalesce")
    first.delay(1)
    second.delay(1)
    with lock("job:1", ttl=60):
        for _ in range(2):
            assert elsewhere(room, room.take())[0] == "IGNORED"
    assert len(follow_ups(room)) == 2
    room.work_off()
    assert sorted(runs) == ["first", "second"]


def test_a_redelivery_of_an_ended_run_does_not_count_as_the_follow_up(room: Mailroom) -> None:
    """It is dropped, so it must not write that a run has started."""
    runs: list[str] = []

    def work(self: Any, job: Any) -> None:
        runs.append(self.request.id)
        if len(runs) == 1:
            elsewhere(room, message, redelivered=True)
            sent.append(task.delay(job).id)
            elsewhere(room, room.take(sent[1]))

    task = room.task(work, on_conflict="coalesce", acks_late=True)
    sent = [task.delay(1).id]
    message = room.take()
    assert room.deliver(message)[0] == "SUCCESS"
    assert room.deliver(room.take(sent[0]))[0] == "IGNORED"
    assert room.deliver(room.take(sent[1]))[0] == "SUCCESS"
    assert runs == sent
    assert room.waiting() == []


def test_a_follow_up_that_was_killed_runs_again(room: Mailroom) -> None:
    """Its redelivery finds its own note, "started", and runs all the same."""
    runs: list[str] = []

    def work(self: Any, job: Any) -> None:
        runs.append(self.request.id)
        if len(runs) == 2:
            raise SystemExit(1)

    task = room.task(work, on_conflict="coalesce", acks_late=True)
    task.delay(1)
    with lock("job:1", ttl=60):
        elsewhere(room, room.take())
    first = task.delay(1).id
    follow_up = room.take(follow_ups(room)[0])
    room.deliver(room.take(first))
    room.deliver(follow_up)  # Done by the first.
    assert runs == [first]
    with lock("job:1", ttl=60):
        task.delay(1)
        elsewhere(room, room.take())
    follow_up = room.take()
    with pytest.raises(SystemExit):
        room.deliver(follow_up)
    assert room.deliver(follow_up, redelivered=True)[0] == "SUCCESS"
    assert runs == [first, follow_up.id, follow_up.id]


def test_a_message_that_refused_calls_rely_on_is_never_skipped(room: Mailroom) -> None:
    """unique_while="queued": a call that was refused counts on the follow-up, not on a run that
    had started before the call."""
    runs: list[tuple[str, int]] = []
    changes = 1

    def work(self: Any, job: Any) -> None:
        nonlocal changes
        runs.append((self.request.id, changes))
        if self.request.id == "beside":
            # The follow-up waits. A change is made during this run, and its call is refused.
            changes += 1
            assert task.delay(job).id == first
            elsewhere(room, room.take())

    task = room.task(work, on_conflict="coalesce", unique_while="queued")
    first = task.delay(1).id
    with lock("job:1", ttl=60):
        elsewhere(room, room.take())
    task.send_anyway([1], task_id="beside")
    room.deliver(room.take("beside"))
    room.work_off()
    assert runs == [("beside", 1), (first, 2)]


def test_a_follow_up_does_not_expire(room: Mailroom) -> None:
    """Refused calls rely on it: the last change would be lost with it."""
    task = room.task(on_conflict="coalesce")
    task.apply_async((1,), expires=0.5)
    with lock("job:1", ttl=60):
        assert elsewhere(room, room.take())[0] == "IGNORED"
    (message,) = room.waiting()
    assert message.ours.get("tries")
    assert message.headers["expires"] is None


def the_next_call_follows(room: Mailroom, task: Any) -> None:
    with lock("job:1", ttl=60):
        sent = task.delay(1).id
        assert elsewhere(room, room.take(sent))[0] == "IGNORED"
        assert follow_ups(room) == [sent]
    assert room.work_off() == [("SUCCESS", None)]


def test_the_next_call_follows_after_a_follow_up_that_failed(
    room: Mailroom,
) -> None:
    """It had lost its lease, and was to follow the next run."""
    runs: list[str] = []

    def work(self: Any, job: Any) -> None:
        runs.append(self.request.id)
        if len(runs) == 1:
            self.lease._deadline = clock.now() - 1
            self.lease.assert_held()

    task = room.task(work, on_conflict="coalesce", acks_late=True, lock_max_attempts=1)
    task.delay(1)
    assert room.deliver(room.take())[0] == "IGNORED"
    with lock("job:1", ttl=60):
        assert elsewhere(room, room.take())[0] == "IGNORED"
    (message,) = room.waiting()
    assert message.ours["tries"]
    state, error = room.deliver(room.take())
    assert (state, type(error)) == ("FAILURE", TooManyAttempts)
    the_next_call_follows(room, task)


def test_the_next_call_follows_after_a_follow_up_that_was_interrupted(
    room: Mailroom,
) -> None:
    """A soft time limit, while it waits for the lock."""
    task = room.task(lambda self, job: None, on_conflict="coalesce", lock_wait=1)
    task.delay(1)

    def too_long(*_: Any) -> None:
        raise SoftTimeLimitExceeded

    def limit() -> None:
        until(lambda: waiting("job:1"), "a waiter")
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, too_long)
    try:
        lease = Meanwhile(lambda: taken("job:1", ttl=60)).result()
        assert room.deliver(room.take())[0] == "IGNORED"
        limited = Meanwhile(limit)
        state, error = room.deliver(room.take())
        limited.result()
        lease.release()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (state, type(error)) == ("FAILURE", SoftTimeLimitExceeded)
    the_next_call_follows(room, task)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_follow_up_runs_if_the_run_before_it_has_failed(room: Mailroom, at_once: bool) -> None:
    """That one came later, got the lock first, and was to do its work."""
    runs: list[str] = []

    def work(self: Any, job: Any) -> None:
        if self.request.id == newcomer:
            raise LookupError
        runs.append(self.request.id)

    task = room.task(work, on_conflict="coalesce", acks_late=True)
    sent = task.delay(1).id
    with lock("job:1", ttl=60):
        assert elsewhere(room, room.take())[0] == "IGNORED"
    follow_up = room.take()
    newcomer = task.delay(1).id
    message = room.take()
    followed: list[str] = []

    def follow(**_: Any) -> None:
        if not followed:
            followed.append("")
            followed[0] = elsewhere(room, follow_up)[0]

    if at_once:
        lock_released.connect(follow)
    try:
        assert room.deliver(message)[0] == "FAILURE"
    finally:
        lock_released.disconnect(follow)
    follow()
    assert followed == ["SUCCESS"]
    assert runs == [sent]


def test_a_direct_call_is_no_follow_up(room: Mailroom) -> None:
    task = room.task(on_conflict="coalesce")
    with lock("job:1", ttl=60):
        assert Meanwhile(lambda: task(1)).result()["reason"] == "already_processing"
    assert room.waiting() == []


class Burst:
    """A counter, a task that reads it, and changes that come whenever they like."""

    def __init__(self, room: Mailroom, chance: random.Random, *, redeliver: bool) -> None:
        self.room = room
        self.chance = chance
        self.redeliver = redeliver
        self.changes = 0
        self.seen: list[int] = []
        self.runs: list[str] = []
        self.refused_by: dict[str, int] = {}
        """for each message that found the lock held, the number of the run that held it"""
        self.task = room.task(self.run, on_conflict="coalesce", acks_late=redeliver)

    def run(self, task: Any, job: int) -> None:
        self.runs.append(task.request.id)
        self.seen.append(self.changes)
        for _ in range(self.chance.choice([0, 1, 2, 4, 8])):
            self.step(running=task.request.id)

    def step(self, running: str | None = None) -> None:
        """One change, or one delivery of whichever message, some of them more than once."""
        waiting = [message for message in self.room.waiting() if message.id != running]
        if not waiting or self.chance.random() < 0.5:
            if self.changes < 8:
                self.changes += 1
                self.task.delay(1)
            return
        message = self.chance.choice(waiting)
        redelivered = self.redeliver and self.chance.random() < 0.3
        if not redelivered:
            self.room.take(message.id)
        if running:
            self.refused_by.setdefault(message.id, len(self.runs))
            elsewhere(self.room, message, redelivered=redelivered)
        else:
            self.room.deliver(message, redelivered=redelivered)

    def play(self) -> None:
        for _ in range(self.chance.randrange(1, 6)):
            self.step()
        deliveries = 0
        while waiting := self.room.waiting():
            deliveries += 1
            assert deliveries < 500, "the queue does not get empty"
            self.room.deliver(self.room.take(self.chance.choice(waiting).id))
        assert max(self.seen, default=0) == self.changes
        if not self.redeliver:
            followed = [self.refused_by[run] for run in self.runs if run in self.refused_by]
            assert len(followed) == len(set(followed)), "a run has two follow-ups"


@pytest.mark.parametrize(
    "redeliver",
    [False, pytest.param(True, marks=pytest.mark.nightly)],
    ids=["once", "redelivered"],
)
def test_the_last_change_of_a_random_burst_is_always_seen(
    room: Mailroom, redeliver: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no run has more than one follow-up. ``SEED=…`` plays the same ones again, and
    ``COALESCE_BURSTS=…`` more of them."""
    # The run that a redelivery would wait for is in the call that delivers it.
    monkeypatch.setattr("django_tasklock.celery.taking.REDELIVERY_WAIT_SECONDS", 0.001)
    seed = drawn_seed()
    runs = refused = 0
    for number in range(BURSTS):
        burst = Burst(room, random.Random(f"{seed}-{redeliver}-{number}"), redeliver=redeliver)
        burst.play()
        runs, refused = runs + len(burst.runs), refused + len(burst.refused_by)
    assert refused > BURSTS < runs
