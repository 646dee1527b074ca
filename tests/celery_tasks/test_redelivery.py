"""A message that is delivered again, or that starts when its redelivery has run: what it continues,
and what it must not repeat. With real workers: ``tests/hard_cases/test_requeues.py``."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from celery import Celery, chord
from django.core.cache import cache

from django_tasklock import LeaseLost, lock, locks
from django_tasklock.testing import outage
from tests.app.models import Job
from tests.celery_tasks.conftest import (
    due_in,
    held_elsewhere,
    job_guard,
    lose,
    loses_its_lease,
    raising,
    retries_once,
    status,
)
from tests.conftest import UseRedis
from tests.inside import counts_parts_once, forget_ends_at_once
from tests.mailroom import ORIGINAL, REDELIVERY, Mailroom, Runs, elsewhere, killed_in_body, mailroom
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, holder, killed_in_child, taken, waiting
from tests.waiting import until

RESULTS = pytest.mark.parametrize("results", [True, False], ids=["results", "no-results"])


@RESULTS
def test_29_each_message_of_a_reused_task_id_runs_once(room: Mailroom, results: bool) -> None:
    runs, messages = Runs(), []
    task = room.task(runs, acks_late=True, ignore_result=not results)
    for day in range(1, 4):
        # Given a daily job with a fixed task id, and on the second day a worker that is killed
        # when it has fetched the message; the result of the day before is still stored
        task.apply_async((1,), task_id="daily")
        messages.append(room.take())

        # I expect the message of each day to run
        assert room.deliver(messages[-1], redelivered=day > 1)[0] == "SUCCESS"

        # And no message up to now to run once more
        for message in messages:
            assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert len(runs) == 3


def test_what_a_run_leaves_in_redis_is_small(room: Mailroom) -> None:
    assert room.deliver(room.message(Runs(), acks_late=True))[0] == "SUCCESS"
    [key] = room.redis.scan_iter(match=f"{cache.make_key('lock: r')}*")
    # The server's tables, and what its allocator rounds up, come to it: up to 200 bytes in all.
    assert len(key) + room.redis.strlen(key) <= 100
    assert 0 < room.redis.ttl(key) <= 120


def test_it_comes_back_soon_where_the_lease_in_its_way_is_over(
    use_redis: UseRedis, redis_server: RedisServer
) -> None:
    """Many caches keep the key for two seconds more."""
    use_redis(tasklock={"BACKEND": "django_tasklock.stores.cache.CacheStore"})
    with mailroom(redis_server.url) as room:
        # Given a retry, and a key that is there when its lease is over
        room.task().apply_async([1], retries=1)
        taken("job:1", ttl=1)
        assert cache.touch("lock:job:1", LONG)
        until(lambda: holder("job:1").ttl == 0.0, "the end of the lease")
        # I expect the retry to come back soon
        assert room.deliver(room.take())[0] == "IGNORED"
        assert due_in(room.take()) < 20.0


def replaced(self: Any, job: Any) -> Any:
    """The body of a run that goes on in the task "other"."""
    return self.replace(self.app.tasks["other"].s(job))


@pytest.mark.parametrize(
    ("first_run", "states", "ran"),
    [
        (None, ["SUCCESS", "IGNORED"], 1),
        (retries_once, ["RETRY", "IGNORED", "SUCCESS"], 2),
        (replaced, ["IGNORED", "IGNORED", "SUCCESS"], 2),
    ],
    ids=["has ended", "goes on in its retry", "goes on in its replacement"],
)
@pytest.mark.parametrize("overwrites", [False, True], ids=["", "a start overwrites the result"])
def test_a_redelivery_of_a_run_that_has_ended_or_goes_on_is_dropped(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch, first_run: Any, states: list[str], ran: int,
    overwrites: bool,
) -> None:  # fmt: skip
    """The note lasts for minutes, a result mostly for a day; and the note lasts longer if a start
    overwrites the result, as in django-celery-results with ``track_started``."""
    forget_ends_at_once(monkeypatch)
    if overwrites:
        backend = "tests.overwriting_backend:OverwritingBackend"
        room.app.conf.update(result_backend=backend, task_track_started=True)
    runs = Runs(first_run, None)
    room.task(runs, name="other", acks_late=True, lock_name="other:{job}")
    message = room.message(runs, acks_late=True)
    ended = room.deliver(message)[0]
    time.sleep(0.05)
    assert [ended, room.deliver(message, redelivered=True)[0], *room.states()] == states
    assert runs == [message.id] * ran


def test_a_redelivery_that_waited_for_its_own_run_is_judged_again_without_the_lock(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would be skipped because of it."""
    held: list[bool] = []
    over = threading.Event()
    runs = Runs(lambda self, job: over.wait(LONG))
    message = room.message(runs, acks_late=True)
    backend: Any = type(room.app.backend)
    ask = backend.get_task_meta

    def asked(*args: Any, **kwargs: Any) -> Any:
        held.append(locks.is_locked("job:1"))
        return ask(*args, **kwargs)

    monkeypatch.setattr(backend, "get_task_meta", asked)
    original = Meanwhile(lambda: room.deliver(message))
    until(lambda: runs, "the original runs")
    again = Meanwhile(lambda: room.deliver(message, redelivered=True))
    until(lambda: waiting("job:1"), "the redelivery waits")
    over.set()
    assert (original.result()[0], again.result()[0]) == ("SUCCESS", "IGNORED")
    assert held[0] is True
    assert (held[1:], len(runs)) == ([False], 1)


@pytest.mark.parametrize("what", ["cools", "is held by other code"])
@pytest.mark.parametrize("begun", ["", "redelivered", "a retry"])
def test_a_message_that_may_have_begun_is_not_skipped_where_no_run_does_its_work(
    room: Mailroom, what: str, begun: str
) -> None:
    """One that has not is, however long it was in the queue."""
    if what == "is held by other code":
        held_elsewhere()
    else:
        with lock("job:1", cooldown=LONG):
            pass
    runs = Runs()
    room.task(runs, acks_late=True).apply_async([1], retries=int(begun == "a retry"))
    message = room.take()
    message.ours["sent"] -= 7200.0
    state, said = room.deliver(message, redelivered=begun == "redelivered")
    if begun:
        assert (state, room.ids()) == ("IGNORED", [message.id])
        locks.clear("job:1")
        assert room.states() == ["SUCCESS"]
    else:
        assert (state, said["status"], room.ids(), runs) == ("SUCCESS", "skipped", [], [])


# ------------------------------------------------------------------------------ lost leases


@pytest.mark.parametrize("silent", [False, True], ids=["", "the store is silent"])
def test_a_run_that_lost_its_lease_starts_over(room: Mailroom, row: Job, silent: bool) -> None:
    """By its own clock: the store extended the lease, but its reply was lost. Without a fence it is
    not known which run has the row: the row is not changed."""

    def first(self: Any, job: Any) -> None:
        lose(self.lease, clear=False)
        if silent:
            outages.enter_context(outage())
        self.lease.assert_held()

    runs = Runs(first, None)
    message = room.message(runs, row.pk, acks_late=True, guard=job_guard(None))
    with ExitStack() as outages:
        assert room.deliver(message)[0] == "IGNORED"
    assert locks.is_locked(f"job:{row.pk}") is silent, "nobody has to wait for its end"
    locks.clear(f"job:{row.pk}")
    assert status(row) == "working"
    assert room.work_off() == [("SUCCESS", None)]
    assert (status(row), len(runs)) == ("done", 2)


@pytest.mark.parametrize("how", ["retries", "is replaced", "is retried"])
def test_a_late_run_sends_no_second_successor_and_uses_up_no_retry(
    room: Mailroom, how: str
) -> None:
    """Its redelivery works then, or has worked, and goes on with it too."""
    starts, ends = [], Runs()
    room.task(ends, name="other", acks_late=True, lock_name="other:{job}")
    goes_on: Any = {"retries": retries_once, "is replaced": replaced, "is retried": ends}[how]

    def work(self: Any, job: Any) -> Any:
        if self.request.retries and how == "retries":
            return ends(self, job)
        starts.append(self.request.retries)
        if len(starts) == 1:
            lose(self.lease)
            elsewhere(room, message, redelivered=True)
            if how == "is retried":
                self.lease.assert_held()
        return goes_on(self, job)

    options = {"autoretry_for": (Exception,)} if how == "is retried" else {}
    message = room.message(work, acks_late=True, **options)
    room.deliver(message)
    room.work_off()
    assert (ends, starts) == ([message.id], [0, 0])


def test_without_acks_late_a_late_run_retries(room: Mailroom) -> None:
    """Nobody else has its message."""

    def work(self: Any, job: Any) -> Any:
        if not self.request.retries:
            lose(self.lease)
        return retries_once(self, job)

    room.task(work).delay(1)
    assert room.states() == ["RETRY", "SUCCESS"]


@pytest.mark.parametrize("how", ["a lock", "a direct call"])
def test_28_a_body_that_loses_another_lock_of_its_own_has_failed(
    room: Mailroom, row: Job, how: str
) -> None:
    """The lease of its own run is held, so there is no reason to start over."""
    other = room.task(loses_its_lease, lock_name="other:{job}")

    def work(self: Any, job: Any) -> None:
        if how == "a direct call":
            other(job)
        with lock(f"other:{job}", ttl=LONG) as lease:
            lose(lease)
            lease.assert_held()

    message = room.message(work, row.pk, acks_late=True, guard=job_guard(None))
    assert room.fails(message, LeaseLost).name == f"other:{row.pk}"
    assert room.ids() == []
    assert (status(row), locks.is_locked(f"job:{row.pk}")) == ("failed", False)


# ------------------------------------------------------------------------------ late originals


@RESULTS
@pytest.mark.parametrize("slots", [1, 2])
def test_an_original_that_starts_after_its_redelivery_is_dropped(
    room: Mailroom, slots: int, results: bool
) -> None:
    """Nothing marks it. A worker had it all the time, until its ETA or behind a long task."""
    runs = Runs()
    message = room.message(runs, acks_late=True, ignore_result=not results, lock_slots=slots)
    assert room.deliveries(message, REDELIVERY, ORIGINAL) == ["SUCCESS", "IGNORED"]
    assert (len(runs), locks.count("job:1")) == (1, 0)


def test_an_original_that_was_handed_the_lock_is_dropped_too(room: Mailroom) -> None:
    """In a process that has waited before: its first question is that of a waiter."""
    runs, ended = Runs(), list[str]()
    for redelivered in ([False], [True, False]):
        message = room.message(runs, acks_late=True, ignore_result=True, lock_wait=30)
        with lock("job:1", ttl=LONG):
            late = [
                Meanwhile(partial(room.deliver, message, redelivered=each)) for each in redelivered
            ]
            until(lambda: waiting("job:1") == len(late), "the waiters")  # noqa: B023
        ended = sorted(each.result()[0] for each in late)
    assert ended == ["IGNORED", "SUCCESS"]
    assert len(runs) == 2


def test_a_requeued_message_and_a_redelivery_of_what_it_replaced_are_one_job(
    room: Mailroom,
) -> None:
    """Its worker was killed after it had requeued the message, and before it acknowledged it."""
    runs = Runs()
    message = room.message(runs, acks_late=True, on_conflict="retry")
    with lock("job:1", ttl=LONG):
        assert elsewhere(room, message)[0] == "IGNORED"
    assert room.deliver(message, redelivered=True)[0] == "SUCCESS"
    assert room.states() == ["IGNORED"]
    assert len(runs) == 1


def test_an_original_runs_if_others_rely_on_it(room: Mailroom) -> None:
    """It has become a follow-up after its redelivery had run."""
    runs = Runs()
    task = room.task(runs, acks_late=True, on_conflict="coalesce")
    other, message = task.delay(1).id, room.take(task.delay(1).id)
    assert room.deliver(message, redelivered=True)[0] == "SUCCESS"
    with lock("job:1", ttl=LONG):
        assert elsewhere(room, message)[0] == "IGNORED"
        assert elsewhere(room, room.take(other))[1]["reason"] == "coalesced"
    assert room.work_off() == [("SUCCESS", None)]
    assert len(runs) == 2


def test_one_whose_redelivery_failed_runs_again(room: Mailroom) -> None:
    """As a redelivery of it would."""
    message = room.message(Runs(raising(LookupError()), None), acks_late=True)
    assert room.deliveries(message, REDELIVERY, ORIGINAL) == ["FAILURE", "SUCCESS"]


# ------------------------------------------------------------------------------ reused task ids


def test_sendings_by_name_under_one_id_cannot_be_told_apart_but_none_is_lost(
    room: Mailroom,
) -> None:
    """The sender does not know the task, and does not say when it was sent."""
    runs = Runs()
    task = room.task(runs, acks_late=True, ignore_result=True)
    with Celery("sender", broker=room.app.conf.broker_url, set_as_current=False, fixups=[]) as app:
        for _ in range(2):
            app.send_task(task.name, [1], task_id="daily", queue=room.queue)
            message = room.take()
            assert not message.ours
            assert room.deliveries(message, ORIGINAL, REDELIVERY) == ["SUCCESS", "IGNORED"]
        app.send_task(task.name, [1], task_id="daily", queue=room.queue)
    message = room.take()
    killed_in_body(room, message)
    assert room.deliver(message, redelivered=True)[0] == "SUCCESS"
    assert len(runs) == 3


def test_a_replacement_is_not_confused_with_the_task_that_it_replaces(room: Mailroom) -> None:
    """Both have the same task id."""
    runs = Runs()
    room.task(runs, name="other", acks_late=True, ignore_result=True)
    assert room.deliver(room.message(replaced, acks_late=True))[0] == "IGNORED"
    assert room.deliveries(room.take(), REDELIVERY, REDELIVERY) == ["SUCCESS", "IGNORED"]
    assert len(runs) == 1


# ------------------------------------------------------------------------------ silent results


@pytest.mark.parametrize("on_outage", ["run", "retry", "raise"])
@pytest.mark.parametrize("before", ["nothing", "a run that ended", "a run that died"])
def test_27_while_the_result_backend_is_silent_a_redelivery_waits_unless_its_run_died(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch, before: str, on_outage: str
) -> None:
    """That is no outage of the lock's store. Who waits does not hold the lock."""
    runs = Runs()
    message = room.message(runs, acks_late=True, on_outage=on_outage)
    if before == "a run that ended":
        assert room.deliver(message)[0] == "SUCCESS"
        [key] = room.redis.scan_iter(match=f"{cache.make_key('lock: r')}*")
        room.redis.pexpire(key, 10_000)
    elif before == "a run that died":
        killed_in_body(room, message)
    ran = len(runs)

    def silent(*_: Any, **__: Any) -> None:
        raise ConnectionError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(type(room.app.backend), "get_task_meta", silent)
        with lock("job:1", ttl=LONG) if before != "a run that died" else ExitStack():
            state, _ = room.deliver(message, redelivered=True)
    if before == "a run that died":
        assert (state, len(runs), room.ids()) == ("SUCCESS", ran + 1, [])
        return
    assert (state, len(runs)) == ("IGNORED", ran)
    assert room.waiting()[0].ours["copy"] == 1
    if before == "a run that ended":
        assert room.redis.pttl(key) > 60_000, "the only record of the end is kept"
    room.work_off()
    assert len(runs) == 1


# ------------------------------------------------------------------------------ parts of chords


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")
@pytest.mark.parametrize("counted", [False, True], ids=["killed before it counts", "counted"])
@pytest.mark.parametrize("which", [0, 1], ids=["first", "last"])
def test_a_redelivered_part_of_a_chord_is_counted_once(
    room: Mailroom, redis_server: RedisServer, counted: bool, which: int
) -> None:
    """The body of the chord runs, and runs once. A killed process does not take results that are
    on Redis along."""
    gathered: list[list[str]] = []
    app: Any = room.app
    with room.results_on(redis_server.url):
        if not counts_parts_once(app.backend):
            pytest.skip("this Celery counts a part of a chord twice")
        part = room.task(acks_late=True)

        def gather(done: list[str]) -> None:
            gathered.append(done)

        chord([part.s(1), part.s(2)])(app.task(gather, name="gather", shared=False).s())
        parts = [room.take(), room.take()]

        def killed() -> None:
            app.backend.on_chord_part_return = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            room.deliver(parts[which])

        for number, each in enumerate(parts):
            if number == which and not counted:
                killed_in_child(killed)
            else:
                room.deliver(each)
        assert room.deliver(parts[which], redelivered=True)[0] == "IGNORED"
        room.work_off()
    assert gathered == [["done:1", "done:2"]]
