"""Uniqueness in the queue, message by message. With workers: ``tests/hard_cases``."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import celery
import pytest
from celery.signals import before_task_publish
from kombu import Connection
from kombu.exceptions import EncodeError, OperationalError

from django_tasklock import Lease, LockNotAcquired, StoreUnavailable, lock, locks
from django_tasklock.celery import by
from django_tasklock.exceptions import AlreadyQueued
from django_tasklock.signals import lock_contended
from django_tasklock.stores import stores
from tests.celery_tasks.conftest import away, reserved_for, retries
from tests.conftest import UseRedis
from tests.inside import asked, kept, waits_asked_for
from tests.mailroom import Mailroom, Runs, mailroom
from tests.proxy import CutProxy
from tests.servers import RedisServer, free_port
from tests.steps import LONG, all_of, in_child, taken
from tests.waiting import PATIENCE, until

MODES = ["queued", "unfinished"]
in_both_modes = pytest.mark.parametrize("mode", MODES)


@pytest.fixture
def room(use_redis: UseRedis, redis_server: RedisServer, cut_proxy: CutProxy) -> Iterator[Mailroom]:
    """Locks go through the proxy, messages do not."""
    use_redis(cut_proxy.url)
    with mailroom(redis_server.url) as room:
        yield room


def reserved() -> list[str]:
    """The task ids that have a reservation."""
    return [reservation.text for reservation in stores["default"].reservations()]


# ------------------------------------------------------------------------------ duplicates


@pytest.mark.parametrize(("mode", "messages"), [("queued", 1), ("unfinished", 1), (None, 80)])
def test_of_many_who_send_at_once_one_message_is_sent(
    room: Mailroom, mode: Any, messages: int
) -> None:
    # Given several senders that call one job at once, and often
    task = room.task(unique_while=mode)
    results = all_of(*[lambda: [task.delay(1).id for _ in range(20)] for _ in range(4)])
    # I expect one message in the queue, or all of them without the option
    assert len(room.ids()) == messages
    # And each caller to get the result of a message that is there
    assert {task_id for ids in results for task_id in ids} == set(room.ids())


def test_a_job_is_its_task_and_its_locks_name(room: Mailroom) -> None:
    """However the arguments are passed; two tasks under one lock are two jobs. The default lock
    tells every argument apart."""
    task, other = room.task(unique_while="queued"), room.task(unique_while="queued")
    by_all = room.task(lock_name=None, unique_while="queued")
    first, of_all = task.delay(1), by_all.delay(1)
    same = [task.apply_async(kwargs={"job": 1}), task.s(1).delay(), task.delay(1, other=2)]
    assert {result.id for result in same} == {first.id}
    assert by_all.delay(job=1, other=None).id == of_all.id
    different = [of_all, task.delay(2), other.delay(1), by_all.delay(1, other=2)]
    assert room.ids() == [first.id, *(result.id for result in different)]


def kind_of(job: Any, other: Any) -> str:
    return f"{other}:{job}"


@pytest.mark.parametrize("unique_name", ["{other}:{job}", by("job", "other"), kind_of])
def test_duplicates_may_have_a_name_of_their_own(room: Mailroom, unique_name: Any) -> None:
    """Two kinds of one lock both wait, two of one kind do not."""
    task = room.task(unique_while="queued", unique_name=unique_name, on_conflict="retry")
    first, second = task.delay(1, other="new"), task.delay(1, other="old")
    assert first.id != second.id
    assert task.delay(1, other="new").id == first.id
    assert task.delay(1, other="old").id == second.id
    # While one of them runs, the lock is the job's
    with lock("job:1", ttl=LONG):
        assert [room.deliver(room.take(each.id))[0] for each in (first, second)] == ["IGNORED"] * 2
        assert sorted(reserved()) == sorted([first.id, second.id])


def test_the_name_of_duplicates_travels_with_the_message(room: Mailroom) -> None:
    # Given a name that depends on more than the arguments, and is another one by now
    names = ["first"]
    task = room.task(
        Runs(retries, None), unique_while="queued", unique_name=lambda job, other: names[0]
    )
    first = task.delay(1)
    names[0] = "second"
    # I expect the retry to reserve what its call has reserved
    room.deliver(room.take())
    names[0] = "first"
    assert task.delay(1).id == first.id
    # And its run to end that
    names[0] = "second"
    assert room.work_off() == [("SUCCESS", None)]
    assert reserved() == []


def test_every_way_to_send_a_task_is_one(room: Mailroom) -> None:
    """Beat's is in ``test_sent_by_name.py``."""
    task = room.task(unique_while="queued")
    first = task.apply_async([1], countdown=30)
    results = [
        task.s(1).apply_async(countdown=5),
        task.si(1).set(eta=datetime.now(timezone.utc) + timedelta(hours=1)).apply_async(),
        task.apply_async([1], task_id="of-my-own"),
        task.apply_async([1], retry=False, priority=3, queue=room.queue),
    ]
    assert {result.id for result in results} == {first.id}
    assert room.ids() == [first.id]


def test_a_duplicate_may_raise(room: Mailroom) -> None:
    """Of a message that waits; of a run it names that, and its lease."""
    task = room.task(lambda self, job: raised(), unique_while="unfinished", on_duplicate="raise")
    first = task.delay(1)

    def raised() -> str:
        with pytest.raises(LockNotAcquired, match=first.id) as caught:
            task.delay(1)
        error: AlreadyQueued = pickle.loads(pickle.dumps(caught.value))
        assert (error.name, error.task_id) == ("job:1", first.id)
        assert error.holder is None or error.holder.owner.task_id == first.id
        return str(error)

    assert raised() == f"the job 'job:1' is in the queue already, as {first.id}"
    said = f"the job 'job:1' is running already, as {first.id}"
    assert room.work_off() == [("SUCCESS", said)]


@pytest.mark.parametrize(("mode", "more"), [("queued", 1), ("unfinished", 0)])
def test_while_one_runs_one_more_may_wait_or_none(room: Mailroom, mode: str, more: int) -> None:
    sent: list[str] = []
    runs = Runs(lambda self, job: sent.extend(self.delay(job).id for _ in range(3)), None)
    task = room.task(runs, unique_while=mode)
    first = task.delay(1).id
    assert room.deliver(room.take()) == ("SUCCESS", None)
    assert len(set(sent)) == 1
    assert (sent[0] == first) is (more == 0)
    assert room.ids() == sent[:more]
    assert room.work_off() == [("SUCCESS", None)] * more
    assert task.delay(1).id not in (first, sent[0])


def test_unfinished_other_work_under_the_lock_is_no_duplicate(room: Mailroom) -> None:
    """An operator's hold, a direct call, code with ``lock()``, another task: there is nothing of
    theirs to wait for."""
    task = room.task(lambda self, job: inside(job), unique_while="unfinished")
    other = room.task(lambda self, job: inside(job))

    def inside(job: int) -> str:
        return str(task.delay(job).id)

    with lock("job:1", ttl=LONG):
        assert inside(1) == room.take().id
    assert task(2) == room.take().id
    other.delay(3)
    state, sent = room.deliver(room.take())
    assert (state, sent) == ("SUCCESS", room.take().id)
    assert locks.hold("job:4", LONG, "alice", "a migration") is not None
    assert inside(4) == room.take().id


@pytest.mark.parametrize("late", [False, True])
def test_unfinished_a_dead_run_counts_if_its_message_is_delivered_again(
    room: Mailroom, late: bool
) -> None:
    task = room.task(unique_while="unfinished", acks_late=late)
    owner = {"task": task.name, "task_id": "of-the-dead"}
    in_child(lambda: isinstance(asked("job:1", ttl=LONG, **owner), Lease))
    assert (task.delay(1).id == "of-the-dead") is late


# ------------------------------------------------------------------------------ for how long

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("way", "seconds"),
    [
        # Until the ETA, and then its own time
        (lambda now: {"countdown": 3600}, 3700),
        (lambda now: {"eta": now + HOUR}, 3700),
        (lambda now: {"eta": (now + HOUR).replace(tzinfo=None)}, 3700),  # UTC, as Celery takes it
        (lambda now: {"eta": (now + HOUR).astimezone().isoformat()}, 3700),
        (lambda now: {"countdown": 3600, "expires": 7200}, 3700),
        # Until the message expires
        (lambda now: {"expires": 50}, 50),
        (lambda now: {"expires": now + HOUR, "countdown": 7200}, 3600),
        (lambda now: {"expires": (now + timedelta(seconds=50)).isoformat()}, 50),
    ],
)
def test_a_reservation_of_a_message_that_goes_away_unseen_ends_by_itself(
    room: Mailroom, way: Any, seconds: float
) -> None:
    room.app.conf.update(timezone="Asia/Tokyo")
    task = room.task(unique_while="queued", unique_for=100)
    task.apply_async([1], **way(datetime.now(timezone.utc)))
    assert seconds - 20 < reserved_for(room, task) <= seconds


# ------------------------------------------------------------------------------ not sent


def test_a_sending_that_fails_leaves_no_reservation(room: Mailroom) -> None:
    task = room.task(unique_while="unfinished")
    address, impatient = f"redis://127.0.0.1:{free_port()}/0", {"max_retries": 0}
    nowhere = Connection(address, transport_options=impatient)
    with nowhere, pytest.raises(OperationalError):
        task.apply_async([1], connection=nowhere, retry=False)
    with pytest.raises(EncodeError):
        task.delay(1, other=object())
    assert reserved() == []
    assert task.delay(1).id == room.take().id


@in_both_modes
def test_a_sending_that_fails_in_an_outage_leaves_no_reservation(
    room: Mailroom, cut_proxy: CutProxy, mode: str
) -> None:
    # Given a Redis that is broker and store, and falls silent between the two
    room.app.conf.update(broker_write_url=cut_proxy.url, task_publish_retry=False)
    task = room.task(unique_while=mode)

    def falls_silent(**_: Any) -> None:
        away(cut_proxy)

    before_task_publish.connect(falls_silent)
    with pytest.raises(OperationalError):
        task.delay(1)
    before_task_publish.disconnect(falls_silent)
    # I expect the next call to be sent soon after it answers
    cut_proxy.accept()
    until(lambda: reserved() == [], "the end of the reservation")
    assert task.delay(1).id == room.take().id


def test_without_the_store_nothing_is_sent_but_what_goes_on(
    room: Mailroom, cut_proxy: CutProxy
) -> None:
    """on_outage says it: raise, or go on without. A retry always goes on, and a message that meets
    the outage goes back to its queue."""
    careful = room.task(unique_while="queued")
    bold = room.task(unique_while="queued", on_outage="run")
    with cut_proxy.away():
        with pytest.raises(StoreUnavailable):
            careful.delay(1)
        sent = [bold.delay(1), careful.apply_async([1], task_id="retried", retries=1)]
        assert room.ids() == [result.id for result in sent]
        assert room.deliver(room.take("retried"))[0] == "IGNORED"
        assert room.ids() == [result.id for result in sent]


@in_both_modes
def test_a_call_that_was_not_sent_leaves_no_reservation(
    room: Mailroom, cut_proxy: CutProxy, mode: str
) -> None:
    """The store has made it, and its answer was lost."""
    task = room.task(unique_while=mode)
    stores["default"].unreserve("warm", "")  # The server knows the script from now on, and runs it.
    cut_proxy.drop_reply(to=b"job:1", times=99)
    with pytest.raises(StoreUnavailable):
        task.delay(1)
    cut_proxy.drop_reply(times=0)
    assert not room.waiting()
    until(lambda: reserved() == [], "the end of the reservation")
    assert task.delay(1).id == room.take().id


def test_a_second_try_with_the_same_task_id_keeps_its_reservation(
    room: Mailroom, cut_proxy: CutProxy
) -> None:
    task = room.task(unique_while="queued")
    with cut_proxy.away(), pytest.raises(StoreUnavailable):
        task.apply_async([1], task_id="daily")
    assert not kept()
    task.apply_async([1], task_id="daily")
    assert task.delay(1).id == "daily"
    assert room.ids() == ["daily"]


# ------------------------------------------------------------------------------ left alone


def test_groups_chords_chains_and_callbacks_are_sent_as_they_are(room: Mailroom) -> None:
    """Somebody else's result would leave them waiting."""
    task, plain = room.task(unique_while="unfinished"), room.task(lock_name="plain:{job}")
    first = task.delay(1)
    assert room.take().id == first.id
    group = celery.group([task.s(1), task.s(1), task.si(1)])()
    chain = (task.s(1) | task.si(1) | plain.s()).apply_async()
    linked = task.apply_async([1], link=plain.s())
    watched = task.apply_async([1], link_error=plain.si(1))
    own = [*(result.id for result in group.results), chain.parent.parent.id, linked.id, watched.id]
    assert room.ids() == own
    assert len(set(own)) == len(own) == 6
    outcomes = room.work_off()
    assert {state for state, _ in outcomes} == {"SUCCESS"}
    assert len(outcomes) == 9  # two more steps of the chain, and the link
    assert chain.get(timeout=PATIENCE) == "done:done:1"
    # They did not take its place either.
    assert task.delay(1).id == first.id


@in_both_modes
def test_its_own_retry_is_never_refused(room: Mailroom, mode: str) -> None:
    """Not beside another message that waits either. Alone, it is the message that waits."""
    others: list[str] = []

    def calls_once_more(self: Any, job: Any) -> None:
        if mode == "queued":
            others.append(self.delay(job).id)
        raise self.retry(countdown=0)

    task = room.task(Runs(retries, calls_once_more, retries, None), unique_while=mode)
    first = task.delay(1)
    assert room.deliver(room.take())[0] == "RETRY"
    assert task.delay(1).id == first.id
    assert room.deliver(room.take(first.id))[0] == "RETRY"
    assert sorted(room.ids()) == sorted([*others, first.id])
    assert room.deliver(room.take(first.id))[0] == "RETRY"
    assert room.deliver(room.take(first.id)) == ("SUCCESS", None)
    assert room.ids() == others


def test_eager_and_direct_calls_are_never_refused(room: Mailroom) -> None:
    task = room.task(unique_while="unfinished")
    task.delay(1)
    assert task.apply([1]).get() == task(1) == "done:1"
    room.app.conf.task_always_eager = True
    assert task.delay(1).get() == "done:1"
    assert len(room.waiting()) == 1


# ------------------------------------------------------------------------------ refused calls


@in_both_modes
@pytest.mark.parametrize("how", ["locked", "beside", "outage"])
def test_the_reservation_ends_before_the_body(
    room: Mailroom, cut_proxy: CutProxy, how: str, mode: str
) -> None:
    """Also of a run without the lock; in an outage as soon as the store answers."""
    seen: list[list[str]] = []

    def work(self: Any, job: Any) -> None:
        cut_proxy.accept()
        if how == "outage":
            until(lambda: reserved() == [], "the end of the reservation")
        seen.append(reserved())

    task = room.task(work, unique_while=mode, on_conflict="run", on_outage="run")
    task.delay(1)
    other = taken("job:1") if how == "beside" else None
    if how == "outage":
        away(cut_proxy)
    assert room.deliver(room.take()) == ("SUCCESS", None)
    assert seen == [[]]
    assert other is None or other.release()


@in_both_modes
@pytest.mark.parametrize("conflict", ["skip", "raise"])
def test_a_skipped_message_tries_once_more_after_its_reservation(
    room: Mailroom, conflict: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused call may rely on this message, while the lock's holder was just ending. The second
    try does not wait once more."""
    waits, told = waits_asked_for(monkeypatch), list[str]()
    task = room.task(on_conflict=conflict, unique_while=mode, lock_wait=0.1)
    sent, lease = task.delay(1), taken("job:1")

    def ends(**_: Any) -> None:
        told.append(task.delay(1).id)
        lease.release()

    lock_contended.connect(ends)
    try:
        assert room.deliver(room.take()) == ("SUCCESS", "done:1")
    finally:
        lock_contended.disconnect(ends)
    assert (told, waits) == ([sent.id], [0.1, 0])
    assert room.waiting() == []


@pytest.mark.parametrize("conflict", ["skip", "raise", "retry"])
def test_a_message_that_does_not_run_leaves_no_reservation(room: Mailroom, conflict: str) -> None:
    """One that waits for the lock keeps it."""
    task = room.task(on_conflict=conflict, unique_while="queued", lock_retry_for=0.5)
    first = task.delay(1)
    with lock("job:1", ttl=LONG):
        if conflict == "retry":
            assert room.deliver(room.take())[0] == "IGNORED"
            assert task.delay(1).id == first.id
            time.sleep(0.5)
        state, value = room.deliver(room.take())
        assert state == ("SUCCESS" if conflict == "skip" else "FAILURE")
        assert "job:1" in str(value)
        assert task.delay(1).id == room.take().id != first.id


def test_what_fails_in_an_outage_ends_its_reservation_as_soon_as_the_store_answers(
    room: Mailroom, cut_proxy: CutProxy
) -> None:
    message = room.message(unique_while="queued", on_outage="raise")
    with cut_proxy.away():
        assert room.deliver(message)[0] == "FAILURE"
    assert reserved() in ([message.id], [])
    until(lambda: reserved() == [], "the end of the reservation")


@pytest.mark.parametrize("other", ["another", "same"])
def test_a_run_that_fails_leaves_the_reservation_of_the_next_message(
    room: Mailroom, other: str
) -> None:
    """Also if that one has the same task id."""

    def work(self: Any, job: Any) -> None:
        self.apply_async([job], task_id=other)
        raise LookupError

    task = room.task(work, unique_while="queued")
    task.apply_async([1], task_id="same")
    assert room.deliver(room.take())[0] == "FAILURE"
    assert reserved() == [other]
    assert task.delay(1).id == other
    assert room.ids() == [other]
