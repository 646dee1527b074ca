"""on_conflict="coalesce", message by message. With workers: ``tests/hard_cases``."""

from __future__ import annotations

from typing import Any

import pytest

from django_tasklock import lock
from django_tasklock._values import clock
from django_tasklock.exceptions import TooManyAttempts
from tests.conftest import UseRedis
from tests.mailroom import Mailroom, elsewhere, mailroom
from tests.proxy import CutProxy
from tests.servers import RedisServer
from tests.steps import Meanwhile, taken
from tests.waiting import until


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


def test_a_call_during_the_follow_up_becomes_the_next_one(room: Mailroom) -> None:
    """It came after that one has read what it works on. A follow-up does not expire."""
    runs: list[str] = []

    def work(self: Any, job: Any) -> None:
        runs.append(self.request.id)
        if len(runs) < 3:
            sent.append(task.apply_async([job], expires=60).id)
            assert elsewhere(room, room.take(sent[-1]))[0] == "IGNORED"
            assert room.waiting()[-1].headers["expires"] is None

    task = room.task(work, on_conflict="coalesce")
    sent = [task.delay(1).id]
    room.work_off()
    assert runs == sent


def test_a_follow_up_runs_whatever_has_run_before_it(room: Mailroom) -> None:
    """Rather one run too many: the one that came later, and got the lock first, may have failed."""
    runs: list[str] = []

    def work(self: Any, job: Any) -> None:
        runs.append(self.request.id)
        if self.request.id == "newcomer":
            raise LookupError

    task = room.task(work, on_conflict="coalesce")
    sent = task.delay(1).id
    with lock("job:1", ttl=60):
        assert elsewhere(room, room.take())[0] == "IGNORED"
    task.apply_async([1], task_id="newcomer")
    assert room.deliver(room.take("newcomer"))[0] == "FAILURE"
    assert room.work_off() == [("SUCCESS", None)]
    assert runs == ["newcomer", sent]


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


def test_a_follow_up_that_was_interrupted_runs_again(room: Mailroom) -> None:
    runs: list[str] = []

    def work(self: Any, job: Any) -> None:
        runs.append(self.request.id)
        if len(runs) == 1:
            raise SystemExit(1)

    task = room.task(work, on_conflict="coalesce", acks_late=True)
    sent = task.delay(1).id
    with lock("job:1", ttl=60):
        elsewhere(room, room.take())
    follow_up = room.take()
    with pytest.raises(SystemExit):
        room.deliver(follow_up)
    assert room.deliver(follow_up, redelivered=True)[0] == "SUCCESS"
    assert runs == [sent] * 2


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


def the_next_call_follows(room: Mailroom, task: Any, result: Any = None) -> None:
    with lock("job:1", ttl=60):
        sent = task.delay(1).id
        assert elsewhere(room, room.take(sent))[0] == "IGNORED"
        assert follow_ups(room) == [sent]
    assert room.work_off() == [("SUCCESS", result)]


def test_the_next_call_follows_after_a_follow_up_that_failed(
    room: Mailroom,
) -> None:
    """It had lost its lease, and was to follow the next run."""
    runs: list[str] = []

    def work(self: Any, job: Any) -> None:
        runs.append(self.request.id)
        if len(runs) == 1:
            self.lease._own.until = clock.now() - 1
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


def test_the_next_call_follows_after_a_follow_up_that_ran_in_an_outage(
    use_redis: UseRedis, redis_server: RedisServer, cut_proxy: CutProxy
) -> None:
    """``on_outage="run"``: its note is taken back as soon as the store answers."""
    use_redis(cut_proxy.url)
    with mailroom(redis_server.url) as room:
        task = room.task(on_conflict="coalesce", on_outage="run", ignore_result=True)
        task.delay(1)
        with lock("job:1", ttl=60):
            assert elsewhere(room, room.take())[0] == "IGNORED"
        with cut_proxy.away():
            assert room.deliver(room.take()) == ("SUCCESS", "done:1")
        until(lambda: not room.redis.keys(f"*next {task.name} *"), "the note is taken back")
        the_next_call_follows(room, task, "done:1")


def test_a_direct_call_is_no_follow_up(room: Mailroom) -> None:
    task = room.task(on_conflict="coalesce")
    with lock("job:1", ttl=60):
        assert Meanwhile(lambda: task(1)).result()["reason"] == "already_processing"
    assert room.waiting() == []


def test_a_dropped_redelivery_leaves_the_follow_up_to_the_retry_of_its_run(room: Mailroom) -> None:
    """Both have one task id."""

    def work(self: Any, job: Any) -> None:
        if not self.request.retries:
            raise self.retry(countdown=0)

    task = room.task(work, acks_late=True, on_conflict="coalesce")
    task.delay(1)
    message = room.take()
    assert room.deliver(message)[0] == "RETRY"
    lease = Meanwhile(lambda: taken("job:1")).result()
    assert room.deliver(room.take())[0] == "IGNORED"  # The retry is the follow-up.
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    other = task.delay(1)
    assert room.deliver(room.take(other.id))[1]["reason"] == "coalesced"
    lease.release()
