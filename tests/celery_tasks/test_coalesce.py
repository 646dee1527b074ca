"""on_conflict="coalesce", message by message. With workers: ``tests/hard_cases``."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from django_tasklock import lock, locks
from django_tasklock.exceptions import TooManyAttempts
from django_tasklock.stores import stores
from tests.celery_tasks.conftest import lose, raising, recording, retries
from tests.conftest import UseRedis
from tests.mailroom import Mailroom, Runs, coalesced, elsewhere, killed_in_body, mailroom
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, taken
from tests.waiting import until

COALESCED = {"on_conflict": "coalesce", "acks_late": True}


def refused(room: Mailroom, result: Any, **options: Any) -> tuple[str, Any]:
    """Deliver the message of a call while its lock is held. Returns its state, and its marker."""
    return elsewhere(room, room.take(result.id), **options)


def test_all_that_comes_during_a_run_becomes_one_follow_up_the_newest_call(room: Mailroom) -> None:
    # Given calls that arrive while their lock is held
    task, runs = recording(room, **COALESCED)
    calls = [task.delay(1, number) for number in range(5)]
    with lock("job:1", ttl=LONG):
        # I expect each newer one to wait
        assert [refused(room, call)[0] for call in calls] == ["IGNORED"] * 5
        # And the older ones to be skipped when they are delivered again
        marker = {"status": "skipped", "reason": "coalesced", "lock": "job:1", "holder": None}
        assert [refused(room, call) for call in calls[:4]] == [("SUCCESS", marker)] * 4
        # And the newest one to look again and again while the lock is held
        for _ in range(3):
            assert refused(room, calls[4])[0] == "IGNORED"
    # And to run once, with its own arguments
    assert room.work_off() == [("SUCCESS", "done:4")]
    assert runs == [4]


@pytest.mark.parametrize("by_name", [False, True], ids=["", "by name"])
@pytest.mark.parametrize("order", [
    "A B C", "C B A", "A B A C", "C A C* B", "A C A* B", "A B C A B C", "B A C B*",
    "B C A C* B* A*",
])  # fmt: skip
def test_in_whatever_order_they_arrive_the_last_one_runs(
    room: Mailroom, order: str, by_name: bool
) -> None:
    """That is the call which was sent last; or first refused last, if the sender does not know the
    task's class. ``*``: the broker delivers its first message again."""
    task, runs = recording(room, **COALESCED)
    send = partial(room.app.send_task, task.name, queue=room.queue) if by_name else task.apply_async
    calls = {letter: send((1, letter)) for letter in "ABC"}
    first = {message.args[1]: message for message in room.waiting()}
    with lock("job:1", ttl=LONG):
        for each in order.split():
            letter, again = each[0], each.endswith("*")
            message = first[letter] if again else room.take(calls[letter].id)
            elsewhere(room, message, redelivered=again)
    room.work_off()
    assert runs == [max("ABC", key=order.index) if by_name else "C"]


@pytest.mark.parametrize("left", [True, False], ids=["is skipped", "runs, if it is alone"])
def test_an_older_follow_up_that_gets_the_lock_leaves_the_job_to_the_newer_one(
    room: Mailroom, left: bool
) -> None:
    task, runs = recording(room, **COALESCED)
    older, newer = task.delay(1, "older"), task.delay(1, "newer")
    with lock("job:1", ttl=LONG):
        refused(room, older)
        refused(room, newer)
    if not left:
        room.deliver(room.take(newer.id))
        runs.clear()
    outcome = room.deliver(room.take(older.id))
    assert coalesced(outcome) == newer.id if left else outcome == ("SUCCESS", "done:older")
    assert not locks.is_locked("job:1")
    room.work_off()
    assert runs == ["newer" if left else "older"]


def test_a_follow_up_that_died_in_its_body_runs_again_before_the_next_one(room: Mailroom) -> None:
    task, runs = recording(room, **COALESCED)
    first, second = task.delay(1, "first"), task.delay(1, "second")
    with lock("job:1", ttl=LONG):
        refused(room, first)
    message = room.take(first.id)
    killed_in_body(room, message)
    with lock("job:1", ttl=LONG):
        refused(room, second)
    assert room.deliver(message, redelivered=True) == ("SUCCESS", "done:first")
    room.work_off()
    assert runs == ["first", "second"]


@pytest.mark.parametrize("behind", [0, 3600])
def test_a_call_during_the_follow_up_becomes_the_next_one(room: Mailroom, behind: int) -> None:
    """It came after that one has read what it works on; also from a host whose clock is behind. A
    follow-up does not expire."""

    def called(self: Any, job: Any) -> None:
        sent.append(task.apply_async([job], expires=60).id)
        message = room.take(sent[-1])
        message.ours["sent"] -= behind * len(runs)
        assert elsewhere(room, message)[0] == "IGNORED"
        assert room.waiting()[-1].headers["expires"] is None

    runs = Runs(called, called, None)
    task = room.task(runs, on_conflict="coalesce")
    sent = [task.delay(1).id]
    room.work_off()
    assert runs == sent


def test_a_follow_up_runs_whatever_has_run_before_it(room: Mailroom) -> None:
    """Rather one run too many: the one that came later, and got the lock first, may have failed."""
    runs = Runs(raising(LookupError()), None)
    task = room.task(runs, on_conflict="coalesce")
    sent = task.delay(1)
    with lock("job:1", ttl=LONG):
        assert refused(room, sent)[0] == "IGNORED"
    task.apply_async([1], task_id="newcomer")
    assert room.deliver(room.take("newcomer"))[0] == "FAILURE"
    assert room.work_off() == [("SUCCESS", None)]
    assert runs == ["newcomer", sent.id]


def test_follow_ups_of_two_tasks_under_one_lock_do_not_replace_each_other(room: Mailroom) -> None:
    runs = Runs()
    calls = [room.task(runs, on_conflict="coalesce").delay(1) for _ in range(2)]
    with lock("job:1", ttl=LONG):
        for call in calls:
            assert refused(room, call)[0] == "IGNORED"
    assert room.states() == ["SUCCESS"] * 2
    assert sorted(runs) == sorted(call.id for call in calls)


def test_a_message_that_refused_calls_rely_on_is_never_skipped(room: Mailroom) -> None:
    """unique_while="queued": a call that was refused counts on the follow-up, not on a run that
    had started before the call."""

    def beside(self: Any, job: Any) -> None:
        # The follow-up waits. A change is made during this run, and its call is refused.
        assert task.delay(job).id == first.id
        elsewhere(room, room.take())

    runs = Runs(beside, None)
    task = room.task(runs, on_conflict="coalesce", unique_while="queued")
    first = task.delay(1)
    with lock("job:1", ttl=LONG):
        refused(room, first)
    task.send_anyway([1], task_id="beside")
    room.deliver(room.take("beside"))
    room.work_off()
    assert runs == ["beside", first.id]


def test_a_call_that_counts_on_a_message_that_leaves_its_job_is_not_lost(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """unique_while="queued": it came after the other, to which the job is left, had started."""
    changes, seen = [1], list[int]()
    task = room.task(
        lambda self, job: seen.append(len(changes)), on_conflict="coalesce", unique_while="queued"
    )
    older, newer, lease = task.delay(1), task.send_anyway([1]), taken("job:1")
    assert refused(room, newer)[0] == "IGNORED"
    store: Any = stores["default"]
    real = store.update_note

    def meets(*args: Any) -> Any:
        named = real(*args)
        if lease.release():
            assert refused(room, newer)[0] == "SUCCESS"
            changes.append(2)
            assert Meanwhile(lambda: task.delay(1).id).result() == older.id
        return named

    monkeypatch.setattr(store, "update_note", meets)
    assert refused(room, older)[0] == "IGNORED"
    room.work_off()
    assert seen == [1, 2]


def the_next_call_follows(room: Mailroom, task: Any, result: Any = None) -> None:
    """Also from a host whose clock is behind: nobody else is the follow-up."""
    with lock("job:1", ttl=LONG):
        task.delay(1)
        message = room.take()
        message.ours["sent"] = 1.0
        assert elsewhere(room, message)[0] == "IGNORED"
    assert room.work_off() == [("SUCCESS", result)]


def test_the_next_call_follows_after_a_follow_up_that_failed(room: Mailroom) -> None:
    """It had lost its lease, and was to follow the next run."""

    def first(self: Any, job: Any) -> None:
        lose(self.lease, clear=False)
        self.lease.assert_held()

    task = room.task(Runs(first, None), lock_max_attempts=1, **COALESCED)
    call = task.delay(1)
    assert room.deliver(room.take())[0] == "IGNORED"
    with lock("job:1", ttl=LONG):
        assert refused(room, call)[0] == "IGNORED"
    room.fails(room.take(), TooManyAttempts)
    the_next_call_follows(room, task)


def test_the_next_call_follows_after_a_follow_up_that_ran_in_an_outage(
    use_redis: UseRedis, redis_server: RedisServer, cut_proxy: CutProxy
) -> None:
    """``on_outage="run"``: its note is taken back as soon as the store answers."""
    use_redis(cut_proxy.url)
    with mailroom(redis_server.url) as room:
        task = room.task(on_conflict="coalesce", on_outage="run", ignore_result=True)
        task.delay(1)
        with lock("job:1", ttl=LONG):
            assert elsewhere(room, room.take())[0] == "IGNORED"
        with cut_proxy.away():
            assert room.deliver(room.take()) == ("SUCCESS", "done:1")
        until(lambda: not room.redis.keys(f"*newest {task.name} *"), "the note is taken back")
        the_next_call_follows(room, task, "done:1")


def test_a_direct_call_is_no_follow_up(room: Mailroom) -> None:
    task = room.task(on_conflict="coalesce")
    with lock("job:1", ttl=LONG):
        assert Meanwhile(lambda: task(1)).result()["reason"] == "already_processing"
    assert room.waiting() == []


def test_a_dropped_redelivery_leaves_the_follow_up_to_the_retry_of_its_run(room: Mailroom) -> None:
    """Both have one task id. A retry is as old as its call."""
    task = room.task(Runs(retries, None), **COALESCED)
    older, call = task.delay(1), task.delay(1)
    message = room.take(call.id)
    assert room.deliver(message)[0] == "RETRY"
    newer = task.delay(1)
    with lock("job:1", ttl=LONG):
        assert refused(room, call)[0] == "IGNORED"  # The retry is the follow-up.
        assert elsewhere(room, message, redelivered=True)[0] == "IGNORED"
        assert refused(room, older)[1]["reason"] == "coalesced"
        assert refused(room, newer)[0] == "IGNORED"
        assert refused(room, call)[1]["reason"] == "coalesced"
