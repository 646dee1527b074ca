"""`unique_while`: no reservation outlives its message, however that one ends before its run."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from celery import Task
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded, TimeLimitExceeded

from django_tasklock import StoreUnavailable, lock
from django_tasklock._engine.renewal import renewal
from django_tasklock.celery import LockedTask
from django_tasklock.exceptions import RequeueFailed
from django_tasklock.signals import lock_contended
from django_tasklock.stores import stores
from tests.conftest import UseRedis
from tests.mailroom import Mailroom, Message, elsewhere, mailroom
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import Meanwhile, in_child, taken, waiting
from tests.waiting import until

MODES = ["queued", "unfinished"]


@pytest.fixture
def room(use_redis: UseRedis, redis_server: RedisServer, cut_proxy: CutProxy) -> Iterator[Mailroom]:
    """Locks go through the proxy, messages do not."""
    use_redis(cut_proxy.url)
    with mailroom(redis_server.url) as room:
        yield room


def reserved() -> list[str]:
    """The task ids that have a reservation."""
    return [reservation.text for reservation in stores["default"].reservations()]


def the_next_call_is_sent(room: Mailroom, task: Any) -> None:
    sent = task.delay(1).id
    assert room.ids() == [sent]
    assert task.delay(1).id == sent


def sent(room: Mailroom, task: Any) -> Message:
    """A message that waits, taken by a worker."""
    task.delay(1)
    return room.take()


# ------------------------------------------------------------------------------ outages


@pytest.mark.parametrize("mode", MODES)
def test_a_lost_reply_that_ends_a_message_ends_its_reservation(
    room: Mailroom, cut_proxy: CutProxy, mode: str
) -> None:
    """on_outage="raise": the store answers again when the message has failed."""
    task = room.task(unique_while=mode, on_outage="raise", acks_late=True)
    message = sent(room, task)
    store: Any = stores["default"]
    with lock("job:1", ttl=60):
        cut_proxy.drop_reply(to=store.keyspace.key("job:1").encode(), times=20)
        state, error = elsewhere(room, message)
        cut_proxy.drop_reply(times=0)
    assert (state, type(error)) == ("FAILURE", StoreUnavailable)
    assert reserved() == []
    the_next_call_is_sent(room, task)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on_outage", ["raise", "run"])
def test_what_ended_in_an_outage_is_no_longer_waited_for(
    room: Mailroom, cut_proxy: CutProxy, on_outage: str, mode: str
) -> None:
    """Its process could not end its reservation; the result backend knows that it has ended."""
    task = room.task(unique_while=mode, on_outage=on_outage)
    message = sent(room, task)
    with cut_proxy.away():
        state = in_child(lambda: room.deliver(message)[0])
    task.backend.store_result(message.id, None, state)  # Which is kept in this process.
    assert state == ("FAILURE" if on_outage == "raise" else "SUCCESS")
    assert reserved() == [message.id]
    the_next_call_is_sent(room, task)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on_outage", ["raise", "run"])
def test_a_reservation_ends_as_soon_as_the_store_answers(
    room: Mailroom, cut_proxy: CutProxy, on_outage: str, mode: str
) -> None:
    task = room.task(unique_while=mode, on_outage=on_outage, ignore_result=True)
    message = sent(room, task)
    with cut_proxy.away():
        room.deliver(message)
    until(lambda: reserved() == [], "the end of the reservation")
    the_next_call_is_sent(room, task)


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_was_not_sent_leaves_no_reservation(
    room: Mailroom, cut_proxy: CutProxy, mode: str
) -> None:
    """The store has made it, and its answer was lost."""
    task = room.task(unique_while=mode)
    cut_proxy.drop_reply(to=b"job:1", times=99)
    with pytest.raises(StoreUnavailable):
        task.delay(1)
    cut_proxy.drop_reply(times=0)
    assert not room.waiting()
    until(lambda: reserved() == [], "the end of the reservation")
    the_next_call_is_sent(room, task)


def test_a_second_try_with_the_same_task_id_keeps_its_reservation(
    room: Mailroom, cut_proxy: CutProxy
) -> None:
    task = room.task(unique_while="queued")
    with cut_proxy.away(), pytest.raises(StoreUnavailable):
        task.apply_async([1], task_id="daily")
    assert not renewal.of(stores["default"], "job:1").entries()
    task.apply_async([1], task_id="daily")
    assert task.delay(1).id == "daily"
    assert room.ids() == ["daily"]


@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
def test_a_run_without_a_lock_ends_its_reservation(
    room: Mailroom, cut_proxy: CutProxy, fails: bool
) -> None:
    """As soon as the store answers: here while the body runs."""

    def work(self: Any, job: Any) -> None:
        cut_proxy.accept()
        if fails:
            raise LookupError

    task = room.task(work, unique_while="queued", on_outage="run", ignore_result=True)
    message = sent(room, task)
    with cut_proxy.away():
        state, _ = room.deliver(message)
    assert state == ("FAILURE" if fails else "SUCCESS")
    assert reserved() == []
    the_next_call_is_sent(room, task)


def test_a_message_that_reserves_again_and_cannot_be_requeued_ends_its_reservation(
    room: Mailroom, cut_proxy: CutProxy
) -> None:
    """It was refused, ended its reservation to try once more, and met an outage then."""
    task = room.task(unique_while="queued", ignore_result=True)
    message = replace(sent(room, task), kwargs={"other": object()})
    store: Any = stores["default"]

    def cut(**_: Any) -> None:
        cut_proxy.drop_reply(to=store.keyspace.key("job:1").encode(), times=20)

    with lock("job:1", ttl=60):
        lock_contended.connect(cut, weak=False)
        try:
            state, error = elsewhere(room, message)
        finally:
            lock_contended.disconnect(cut)
            cut_proxy.drop_reply(times=0)
    assert (state, type(error)) == ("FAILURE", RequeueFailed)
    assert reserved() == []
    the_next_call_is_sent(room, task)


# ------------------------------------------------------------------------------ before the run


def test_a_soft_time_limit_while_it_waits_ends_its_reservation(room: Mailroom) -> None:
    task = room.task(unique_while="queued", lock_wait=60, ignore_result=True)
    message = sent(room, task)

    def too_long(*_: Any) -> None:
        raise SoftTimeLimitExceeded

    def limit() -> None:
        until(lambda: waiting("job:1"), "a waiter")
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, too_long)
    try:
        lease = Meanwhile(lambda: taken("job:1", ttl=60)).result()
        limited = Meanwhile(limit)
        state, error = room.deliver(message)
        limited.result()
        lease.release()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (state, type(error)) == ("FAILURE", SoftTimeLimitExceeded)
    assert reserved() == []
    the_next_call_is_sent(room, task)


def test_a_number_of_permits_that_cannot_be_told_ends_its_reservation(room: Mailroom) -> None:
    def slots(job: int, other: Any = None) -> int:
        raise LookupError

    task = room.task(unique_while="queued", lock_slots=slots, ignore_result=True)
    message = sent(room, task)
    state, error = room.deliver(message)
    assert (state, type(error)) == ("FAILURE", LookupError)
    assert reserved() == []
    the_next_call_is_sent(room, task)


def test_a_name_that_cannot_be_told_is_no_longer_waited_for(room: Mailroom) -> None:
    """Which reservation it had nobody knows, but the result backend knows that it has ended."""
    known = True

    def name(job: int, other: Any = None) -> str:
        if not known:
            raise LookupError
        return f"job:{job}"

    task = room.task(unique_while="queued", lock_name=name)
    message = sent(room, task)
    known = False
    assert room.deliver(message)[0] == "FAILURE"
    known = True
    the_next_call_is_sent(room, task)


class Failing(Task):
    """Does something before the run, or instead of it."""

    instead: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the next class's, unless there is something else to do."""
        return self.instead() if self.instead else super().__call__(*args, **kwargs)


class CallBefore(Failing, LockedTask): ...


class StartBefore(LockedTask):
    """Does something in a hook that Celery calls before the call."""

    instead: Any = None

    def before_start(self, *_: Any) -> None:
        """Do it."""
        if self.instead:
            self.instead()


def failing() -> None:
    raise LookupError


def rejecting() -> None:
    raise Reject(requeue=False)


def ignoring() -> None:
    raise Ignore


def requeueing() -> None:
    raise Reject(requeue=True)


def exiting() -> None:
    raise SystemExit(1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("base", "instead", "state"),
    [
        (CallBefore, failing, "FAILURE"),
        (CallBefore, rejecting, "REJECTED"),
        (CallBefore, lambda: None, "SUCCESS"),
        (CallBefore, ignoring, "IGNORED"),
        (StartBefore, failing, "FAILURE"),
        (StartBefore, ignoring, "IGNORED"),
    ],
    ids=[
        "call fails",
        "call rejects",
        "call returns",
        "call ignores",
        "hook fails",
        "hook ignores",
    ],
)
def test_a_message_that_never_reaches_its_run_ends_its_reservation(
    room: Mailroom, base: Any, instead: Any, state: str, mode: str
) -> None:
    """Another class, before ours, ends it."""
    task = room.task(base=base, unique_while=mode, ignore_result=True)
    message = sent(room, task)
    task.instead = instead
    assert room.deliver(message)[0] == state
    assert reserved() == []
    the_next_call_is_sent(room, task)


@pytest.mark.parametrize("instead", [requeueing, exiting])
def test_a_message_that_comes_back_keeps_its_reservation(room: Mailroom, instead: Any) -> None:
    task = room.task(base=CallBefore, unique_while="queued", acks_late=True)
    message = sent(room, task)
    task.instead = instead
    try:
        room.deliver(message)
    except SystemExit:
        pass
    assert task.delay(1).id == message.id
    task.instead = None
    assert room.deliver(message, redelivered=True) == ("SUCCESS", "done:1")
    assert reserved() == []


def test_a_worker_that_stops_before_the_run_ends_the_reservation_of_what_it_has_acknowledged(
    room: Mailroom,
) -> None:
    for base in (CallBefore, StartBefore):
        task = room.task(base=base, unique_while="queued")
        message = sent(room, task)
        task.instead = exiting
        with pytest.raises(SystemExit):
            room.deliver(message)
        assert reserved() == []


def test_a_follow_up_that_never_reaches_its_run_is_replaced_by_the_next(room: Mailroom) -> None:
    """on_conflict="coalesce": calls are left to the follow-up, which its note names."""
    task = room.task(base=CallBefore, on_conflict="coalesce", ignore_result=True)
    message = sent(room, task)
    with lock("job:1", ttl=60):
        assert elsewhere(room, message)[0] == "IGNORED"
    task.instead = failing
    assert room.deliver(room.take())[0] == "FAILURE"
    task.instead = None
    with lock("job:1", ttl=60):
        task.apply_async([1], task_id="next")
        assert elsewhere(room, room.take())[0] == "IGNORED"
    assert room.ids() == ["next"]
    assert room.work_off() == [("SUCCESS", "done:1")]


def test_a_follow_up_that_has_run_without_the_lock_is_relied_on_no_longer(
    room: Mailroom, cut_proxy: CutProxy
) -> None:
    def work(self: Any, job: Any) -> str:
        cut_proxy.accept()
        return f"done:{job}"

    task = room.task(work, on_conflict="coalesce", on_outage="run", ignore_result=True)
    task.delay(1)
    first = room.take()
    with lock("job:1", ttl=60):
        assert elsewhere(room, first)[0] == "IGNORED"
    follow_up = room.take()
    with cut_proxy.away():
        assert room.deliver(follow_up) == ("SUCCESS", "done:1")
    # What holds the lock now is no run that began after the next call
    with lock("job:1", ttl=60):
        task.apply_async([1], task_id="next")
        assert elsewhere(room, room.take())[0] == "IGNORED"
    assert room.ids() == ["next"]


# ------------------------------------------------------------------------------ and no other one


@pytest.mark.parametrize("other", ["another", "same"])
def test_a_run_that_fails_leaves_the_reservation_of_the_next_message(
    room: Mailroom, other: str
) -> None:
    """Also if that one has the same task id."""

    def work(self: Any, job: Any) -> None:
        self.apply_async([job], task_id=other)
        raise LookupError

    task = room.task(work, unique_while="queued", ignore_result=True)
    task.apply_async([1], task_id="same")
    assert room.deliver(room.take())[0] == "FAILURE"
    assert reserved() == [other]
    assert task.delay(1).id == other
    assert room.ids() == [other]


def test_a_retry_that_cannot_be_sent_reserves_nothing(room: Mailroom) -> None:
    def work(self: Any, job: Any) -> None:
        raise self.retry(args=(job, object()))

    task = room.task(work, unique_while="queued", ignore_result=True)
    assert room.deliver(sent(room, task))[0] == "REJECTED"
    assert reserved() == []
    the_next_call_is_sent(room, task)


# ------------------------------------------------------------------------------ stored results


def its_result_is_past(task: Any, task_id: str) -> None:
    """Wait until its result was stored a tenth of a second ago."""
    done = datetime.fromisoformat(task.backend.get_task_meta(task_id)["date_done"])
    until(lambda: time.time() > done.timestamp() + 0.1, "it is older")


def test_an_earlier_result_of_its_task_id_does_not_end_a_message(room: Mailroom) -> None:
    """A task id may be used again: the result is from before the message was due."""
    task = room.task(unique_while="queued")
    for _ in range(3):
        task.apply_async([1], task_id="daily")
        assert task.delay(1).id == "daily"
        assert room.work_off() == [("SUCCESS", "done:1")]
        its_result_is_past(task, "daily")


@pytest.mark.parametrize(("unique_for", "ended"), [(3600, True), (0.1, False)])
def test_a_store_that_cannot_list_takes_results_of_the_last_unique_for_seconds(
    on_locmem: None, redis_server: RedisServer, unique_for: float, ended: bool
) -> None:
    """It does not know when the message was due. What is reserved for longer is another message."""
    with mailroom(redis_server.url) as room:
        task = room.task(unique_while="queued", unique_for=unique_for)
        message = task.apply_async([1], unique_for=3600)
        task.backend.mark_as_failure(message.id, StoreUnavailable("default"))
        its_result_is_past(task, message.id)
        assert (task.delay(1).id != message.id) is ended


def test_a_job_at_its_hard_limit_whose_message_comes_back_is_waited_for(room: Mailroom) -> None:
    """Celery stores the failure, and the broker delivers the message again."""
    task = room.task(unique_while="queued", acks_late=True, acks_on_failure_or_timeout=False)
    message = sent(room, task)
    task.backend.mark_as_failure(message.id, TimeLimitExceeded(1))
    assert task.delay(1).id == message.id


def test_a_job_at_its_hard_limit_whose_message_is_acknowledged_has_ended(room: Mailroom) -> None:
    """Also if nobody could end its reservation."""
    task = room.task(unique_while="queued", acks_late=True)
    message = sent(room, task)
    task.backend.mark_as_failure(message.id, TimeLimitExceeded(1))
    assert task.delay(1).id != message.id


def test_a_message_that_is_retried_is_waited_for(room: Mailroom) -> None:
    task = room.task(unique_while="queued")
    message = sent(room, task)
    task.backend.mark_as_retry(message.id, LookupError())
    assert task.delay(1).id == message.id
