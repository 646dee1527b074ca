"""``debounce``, message by message. With workers: ``tests/celery_tasks/queue``."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import celery
import pytest
from celery import signals
from celery.utils.time import maybe_iso8601
from django.db import transaction
from django.test.utils import override_settings
from kombu.exceptions import EncodeError

from django_tasklock import InvalidLockConfig, LockNotAcquired, lock, locks
from django_tasklock.celery.debounce import drop
from django_tasklock.exceptions import StoreUnavailable
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note
from tests.mailroom import Mailroom, Message, elsewhere
from tests.seeds import drawn_seed
from tests.servers import free_port
from tests.steps import LONG, Meanwhile, all_of, waiting
from tests.waiting import until

HOUR_SECONDS = 3600.0


def recording(room: Mailroom, **options: Any) -> tuple[Any, list[Any]]:
    """A debounced task, and what its runs were called with."""
    runs: list[Any] = []

    def body(self: Any, job: Any, other: Any = None) -> Any:
        runs.append(other)
        return f"done:{other}"

    options = {"name": f"task-{random.randrange(10**9)}", "lock_name": "job:{job}", **options}
    return room.register(body, bind=True, **{"debounce": 5, **options}), runs


def due_in(message: Message) -> float:
    """Seconds from now until a message is to run."""
    eta: Any = maybe_iso8601(message.headers["eta"])
    return float((eta - datetime.now(timezone.utc)).total_seconds())


def reasons(outcomes: list[tuple[str, Any]]) -> list[str]:
    """Why each message was skipped, or what it returned."""
    assert {state for state, _ in outcomes} <= {"SUCCESS"}
    return [value["reason"] if isinstance(value, dict) else value for _, value in outcomes]


# ------------------------------------------------------------------------------ a burst


def test_of_a_burst_the_last_call_runs_with_its_arguments(
    room: Mailroom, caplog: pytest.LogCaptureFixture
) -> None:
    task, runs = recording(room)
    results = [task.delay(1, number) for number in range(30)]
    assert room.ids() == [result.id for result in results]
    assert all(0 < due_in(message) <= 5 for message in room.waiting())
    with caplog.at_level(logging.INFO):
        outcomes = room.work_off()
    marker = {"status": "skipped", "reason": "debounced", "lock": "job:1"}
    assert [value for _, value in outcomes[:-1]] == [marker | {"holder": results[-1].id}] * 29
    assert outcomes[-1] == ("SUCCESS", "done:29")
    assert runs == [29]
    assert results[0].get() == marker | {"holder": results[-1].id}
    replaced = [record for record in caplog.records if "replaces it" in record.getMessage()]
    assert len(replaced) == 29
    assert results[-1].id in replaced[0].getMessage()


def test_in_any_order_and_from_several_threads_the_last_one_runs_last(room: Mailroom) -> None:
    """``SEED=…`` makes the same order again."""
    chance = random.Random(drawn_seed())
    task, runs = recording(room)
    for _ in range(5):
        runs.clear()
        all_of(*[lambda: [task.delay(1, time.time_ns()) for _ in range(6)] for _ in range(4)])
        last = max(room.waiting(), key=lambda message: int(message.ours["moment"]))
        while room.waiting():
            room.deliver(room.take(chance.choice(room.ids())))
        assert runs == [last.args[1]]


def test_another_job_has_a_burst_of_its_own(room: Mailroom) -> None:
    task, runs = recording(room)
    other, others = recording(room)
    for number, one in enumerate([task, other, task, other]):
        one.delay(1, number)
        one.delay(2, number)
    room.work_off()
    assert (runs, others) == ([2, 2], [3, 3])


def test_a_message_that_comes_late_is_skipped_after_the_last_one_has_run(room: Mailroom) -> None:
    """Of two workers, the one with the earlier message may be the slower one."""
    task, runs = recording(room)
    first, second, last = (task.delay(1, number).id for number in range(3))
    assert room.deliver(room.take(last)) == ("SUCCESS", "done:2")
    assert reasons([room.deliver(room.take(one)) for one in (second, first)]) == ["debounced"] * 2
    assert runs == [2]


def test_a_call_during_the_run_runs_later(room: Mailroom) -> None:
    sent: list[str] = []

    def work(self: Any, job: Any) -> None:
        if not sent:
            sent.extend(task.delay(job).id for _ in range(3))

    task = room.task(work, debounce=5)
    task.delay(1)
    assert room.deliver(room.take()) == ("SUCCESS", None)
    assert all(message.headers["eta"] for message in room.waiting())
    assert reasons(room.work_off()) == ["debounced", "debounced", None]


# ------------------------------------------------------------------------------ debounce_max


def test_a_burst_ends_debounce_max_after_its_first_call(room: Mailroom, time_machine: Any) -> None:
    task, runs = recording(room, debounce=5, debounce_max=12)
    start = time.time()
    dues = []
    for at in (0, 4, 8, 11, 11.5):
        time_machine.move_to(start + at, tick=False)
        task.delay(1, at)
        eta: Any = maybe_iso8601(room.waiting()[-1].headers["eta"])
        dues.append(round(eta.timestamp() - start, 2))
    assert dues == [5, 9, 12, 12, 12]
    room.work_off()
    assert runs == [11.5]


def test_calls_that_keep_coming_do_not_push_the_last_of_a_burst_away(
    room: Mailroom, time_machine: Any
) -> None:
    """Workers are late: the calls after the end of the burst are another one."""
    task, runs = recording(room, debounce=5, debounce_max=12)
    start = time.time()
    for at in (0, 6, 13, 14, 20):
        time_machine.move_to(start + at, tick=False)
        task.delay(1, at)
    outcomes = [room.deliver(room.take()) for _ in range(5)]
    assert reasons(outcomes) == ["debounced", "done:6", "debounced", "debounced", "done:20"]
    assert runs == [6, 20]


def test_while_one_is_kept_no_other_one_is(room: Mailroom, time_machine: Any) -> None:
    """With workers that are ever so late, a run is made again and again, and messages do not pile
    up."""
    task, runs = recording(room, debounce=2, debounce_max=4)
    start = time.time()
    late: list[str] = []
    for at in range(60):
        time_machine.move_to(start + at, tick=False)
        late.append(task.delay(1, at).id)
        if at >= 20:
            room.deliver(room.take(late[at - 20]))
    room.work_off()
    assert runs[-1] == 59
    assert runs == sorted(runs)
    assert 3 <= len(runs) <= 8


# ------------------------------------------------------------------------------ never none


def test_without_the_note_every_message_runs(room: Mailroom) -> None:
    task, runs = recording(room)
    for number in range(3):
        task.delay(1, number)
    (key,) = room.redis.keys(f"*debounce {task.name} *")
    room.redis.delete(key)
    room.work_off()
    assert runs == [0, 1, 2]


def test_a_sending_that_fails_replaces_nothing(room: Mailroom) -> None:
    task, runs = recording(room)
    task.delay(1, "sent")
    with pytest.raises(EncodeError):
        task.delay(1, object())
    broken = f"redis://127.0.0.1:{free_port()}"
    with (
        room.app.connection_for_write(broken) as nowhere,
        pytest.raises(task.OperationalError),
    ):
        task.apply_async((1, "lost"), connection=nowhere, retry=False)
    room.work_off()
    assert runs == ["sent"]


@pytest.mark.parametrize("longest", [None, 20])
def test_a_note_that_nobody_can_read_replaces_nothing(
    room: Mailroom, longest: float | None
) -> None:
    for text in (
        "", "null", "[]", "[1,2,3,4,5]", '["a","b",1,0,false]', "{", "[" * 5000,
        f'[1,"b",1{"0" * 400},0,false]', f'[1{"0" * 400},"b",1,0,false]', '[1,"b",-1,0,false]',
    ):  # fmt: skip
        task, runs = recording(room, debounce_max=longest)
        task.delay(1, "first")
        (key,) = room.redis.keys(f"*debounce {task.name} *")
        room.redis.set(key, text)
        room.work_off()
        task.delay(1, "second")
        room.work_off()
        assert runs == ["first", "second"]


@pytest.mark.parametrize("longest", [None, 20])
@pytest.mark.parametrize("ahead", [HOUR_SECONDS, -HOUR_SECONDS])
def test_hosts_whose_clocks_differ(
    room: Mailroom, ahead: float, longest: float | None, time_machine: Any
) -> None:
    """Neither a pending call nor one that ran hides a call from a host that is behind. With
    ``debounce_max`` one call more may run, and never one less."""
    task, runs = recording(room, debounce_max=longest)
    now = time.time()
    for number, moment in enumerate([now, now + ahead, now + 1, now + ahead + 2]):
        time_machine.move_to(moment, tick=False)
        task.delay(1, number)
        assert -1 < due_in(room.waiting()[-1]) <= 5.1
        if number == 1:
            room.work_off()
    room.work_off()
    if longest is None:
        assert runs == [1, 3]
    else:
        assert runs == sorted(runs)
        assert {1, 3} <= set(runs)


def test_the_store_is_silent_while_a_call_is_sent(
    room: Mailroom, caplog: pytest.LogCaptureFixture
) -> None:
    """The call is sent, is not replaced, and replaces nothing."""
    task, runs = recording(room)
    task.delay(1, "before")
    with silent_store():
        result = task.delay(1, "silent")
    assert isinstance(result, celery.result.AsyncResult)
    assert f"{task.name}[{result.id}] is sent, and is not debounced" in caplog.text
    message = room.waiting()[-1]
    assert "moment" not in message.ours
    assert 0 < due_in(message) <= 5
    task.delay(1, "after")
    room.work_off()
    assert runs[-1] == "after"
    assert "silent" in runs


def test_the_store_falls_silent_between_a_sending_and_its_note(
    room: Mailroom, caplog: pytest.LogCaptureFixture
) -> None:
    """The call was sent, so nothing is raised, and the one before it runs too."""
    task, runs = recording(room)
    task.delay(1, "before")
    with contextlib.ExitStack() as silence:

        def sent(**_: Any) -> None:
            silence.enter_context(silent_store())

        signals.after_task_publish.connect(sent, weak=False)
        silence.callback(signals.after_task_publish.disconnect, sent)
        result = task.delay(1, "silent")
    assert f"{task.name}[{result.id}] was sent, and does not replace" in caplog.text
    room.work_off()
    assert runs == ["before", "silent"]


@contextlib.contextmanager
def silent_store() -> Iterator[None]:
    """Meanwhile the locks' cache is where nobody listens."""
    url = f"redis://127.0.0.1:{free_port()}"
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
    with override_settings(CACHES={"default": cache}):
        with pytest.raises(StoreUnavailable):
            locks.get("job:1")
        yield


# ------------------------------------------------------------------------------ a held lock


@pytest.mark.parametrize("conflict", ["skip", "coalesce"])
def test_a_call_whose_lock_is_held_waits_and_later_ones_replace_it(
    room: Mailroom, conflict: str
) -> None:
    task, runs = recording(room, on_conflict=conflict)
    with lock("job:1", ttl=LONG):
        task.delay(1, "first")
        assert room.deliver(room.take())[0] == "IGNORED"
        second = task.delay(1, "second").id
        assert room.deliver(room.take())[1]["reason"] == "debounced"
        for _ in range(3):
            assert room.deliver(room.take(second))[0] == "IGNORED"
    assert reasons(room.work_off()) == ["done:second"]
    assert runs == ["second"]


def test_the_first_run_holds_the_lock_when_the_next_burst_is_due(room: Mailroom) -> None:
    runs: list[str] = []
    outcomes: list[str] = []

    def work(self: Any, job: Any) -> None:
        runs.append(self.request.id)
        if len(runs) == 1:
            sent.extend(task.delay(job).id for _ in range(3))
            outcomes.extend(elsewhere(room, room.take())[0] for _ in range(3))

    task = room.task(work, debounce=5)
    sent = [task.delay(1).id]
    room.deliver(room.take())
    assert outcomes == ["SUCCESS", "SUCCESS", "IGNORED"]
    room.work_off()
    assert runs == [sent[0], sent[-1]]


def test_raise_retry_and_run_do_what_they_do(room: Mailroom) -> None:
    for conflict, state in (("raise", "FAILURE"), ("retry", "IGNORED"), ("run", "SUCCESS")):
        task, runs = recording(room, on_conflict=conflict)
        with lock("job:1", ttl=LONG):
            task.delay(1, "a")
            task.delay(1, "b")
            assert room.deliver(room.take())[1]["reason"] == "debounced"
            found, value = room.deliver(room.take())
        assert found == state
        assert isinstance(value, LockNotAcquired) is (conflict == "raise")
        assert runs == (["b"] if conflict == "run" else [])
        room.redis.delete(room.queue)


def test_a_later_call_while_one_waits_in_the_lock_queue_replaces_it(room: Mailroom) -> None:
    """The note is read once more under the lock."""
    task, runs = recording(room, lock_wait=LONG)
    with lock("job:1", ttl=LONG):
        task.delay(1, "first")
        message = room.take()
        waits = Meanwhile(lambda: room.deliver(message))
        until(lambda: waiting("job:1") == 1)
        task.delay(1, "second")
    assert reasons([waits.result()]) == ["debounced"]
    room.work_off()
    assert runs == ["second"]


# ------------------------------------------------------------------------------ redeliveries


@pytest.mark.parametrize("late", [False, True])
def test_a_retry_of_the_body_keeps_its_own_way(room: Mailroom, late: bool) -> None:
    """A call that came meanwhile does not replace it, and it does not replace that call."""
    tries: list[Any] = []

    def body(self: Any, job: Any, other: Any = None) -> str:
        tries.append((other, self.request.retries))
        if self.request.retries < 1 and other == "first":
            task.delay(job, "second")
            raise self.retry(countdown=0)
        return "done"

    task = room.register(
        body, bind=True, name="retried", lock_name="job:{job}", debounce=5, acks_late=late
    )
    task.delay(1, "first")
    assert room.deliver(room.take())[0] == "RETRY"
    second, retry = room.waiting()
    assert (second.args[1], "moment" in second.ours) == ("second", True)
    assert (retry.args[1], "moment" in retry.ours) == ("first", False)
    room.work_off()
    assert tries == [("first", 0), ("second", 0), ("first", 1)]


def test_a_redelivery_of_a_run_that_died_runs_though_a_later_call_has_come(
    room: Mailroom,
) -> None:
    """It was the last one of its burst, and the later call is of the next one."""
    runs: list[Any] = []

    def body(self: Any, job: Any, other: Any = None) -> None:
        runs.append(other)

    task = room.register(
        body, bind=True, name="dies", lock_name="job:{job}", debounce=5, acks_late=True
    )
    task.delay(1, "first")
    message = room.take()
    # What a run leaves that was killed at its start.
    delivered = f"run {message.id}:0.0:{message.ours['sent']}"
    store = stores["default"]
    store.set_note(Note(delivered, '{"starts": 1}', 60))
    task.delay(1, "second")
    assert room.deliver(message, redelivered=True)[0] == "SUCCESS"
    room.work_off()
    assert runs == ["first", "second"]


def test_a_redelivery_of_the_last_one_is_dropped_after_its_run(room: Mailroom) -> None:
    task, runs = recording(room, acks_late=True)
    task.delay(1, "only")
    message = room.take()
    assert room.deliver(message)[0] == "SUCCESS"
    assert room.deliver(message, redelivered=True)[0] == "IGNORED"
    assert runs == ["only"]


def test_a_rejected_message_runs_again(room: Mailroom) -> None:
    runs: list[int] = []

    def work(self: Any, job: Any) -> None:
        runs.append(job)
        if len(runs) < 3:
            raise celery.exceptions.Reject("again", requeue=True)

    task = room.task(work, debounce=5, acks_late=True)
    task.delay(1)
    message = room.take()
    states = [room.deliver(message, redelivered=number > 0)[0] for number in range(3)]
    assert states == ["REJECTED", "REJECTED", "SUCCESS"]


# ------------------------------------------------------------------------------ other calls


def test_direct_and_eager_calls_run_at_once(room: Mailroom) -> None:
    task, runs = recording(room)
    assert task(1, "direct") == "done:direct"
    assert task.apply((1, "applied")).get() == "done:applied"
    room.app.conf.task_always_eager = True
    assert task.delay(1, "eager").get() == "done:eager"
    assert runs == ["direct", "applied", "eager"]
    assert room.waiting() == []


def test_calls_that_are_not_debounced(room: Mailroom) -> None:
    """Each is sent as it is, is not replaced, and replaces nothing."""
    task, runs = recording(room)
    task.delay(1, "debounced")
    eta = datetime.now(timezone.utc) + timedelta(seconds=100)
    task.apply_async((1, "countdown"), countdown=100)
    task.apply_async((1, "eta"), eta=eta)
    task.send_anyway((1, "anyway"))
    task.apply_async((1, "short"), expires=3)
    room.app.send_task(task.name, (1, "by name"), queue=room.queue)
    _, countdown, at, anyway, short, by_name = room.waiting()
    assert 90 < due_in(countdown) <= 100
    assert 90 < due_in(at) <= 100
    assert [message.headers["eta"] for message in (anyway, short, by_name)] == [None] * 3
    assert sum("moment" in message.ours for message in room.waiting()) == 1
    room.work_off()
    assert runs == ["debounced", "countdown", "eta", "anyway", "short", "by name"]


def test_groups_chords_and_chains_go_on_with_the_marker(room: Mailroom) -> None:
    task, runs = recording(room)
    collected: list[Any] = []

    def gather(value: Any) -> None:
        collected.append(value)

    app: Any = room.app
    collect = app.task(gather, name="collect", shared=False)
    group = celery.group(task.s(1, number) for number in range(3))()
    chain = (task.s(1, "chained") | collect.s()).apply_async()
    assert chain.parent is not None
    outcomes = [room.deliver(room.take()) for _ in range(4)]
    assert reasons(outcomes) == ["debounced"] * 3 + ["done:chained"]
    assert [value["reason"] for value in group.get()[:3]] == ["debounced"] * 3
    room.work_off()
    (one,) = collected
    assert one == "done:chained"
    first = (task.s(1, "a") | collect.s()).apply_async()
    task.delay(1, "b")
    room.work_off()
    assert collected[1]["reason"] == "debounced"
    assert first.parent.get() == collected[1]
    assert runs == ["chained", "b"]


def test_a_task_that_replaces_another_is_sent_at_once(room: Mailroom) -> None:
    task, runs = recording(room)

    def work(self: Any, job: Any) -> None:
        raise self.replace(task.s(1, "replaces"))

    other = room.task(work, lock_name="other:{job}")
    other.delay(1)
    room.deliver(room.take())
    (message,) = room.waiting()
    assert message.headers["eta"] is None
    room.work_off()
    assert runs == ["replaces"]


@pytest.mark.django_db(transaction=True)
def test_on_commit_the_moment_is_that_of_the_commit(room: Mailroom) -> None:
    task, runs = recording(room)
    with transaction.atomic():
        task.delay_on_commit(1, "committed")
        task.delay(1, "at once")
    with transaction.atomic():
        task.delay_on_commit(1, "rolled back")
        transaction.set_rollback(True)
    room.work_off()
    assert runs == ["committed"]


def test_the_same_task_id_each_time(room: Mailroom) -> None:
    task, runs = recording(room)
    for number in range(3):
        task.apply_async((1, number), task_id="mine")
    room.work_off()
    assert runs == [2]


def test_headers_and_options_of_the_call_stay(room: Mailroom) -> None:
    task, _ = recording(room)
    task.apply_async((1,), headers={"mine": 1}, shadow="other", expires=100)
    message = room.take()
    assert message.headers["mine"] == 1
    assert message.headers["expires"] is not None
    assert message.headers["shadow"] == "other"


def test_arguments_that_name_no_lock_are_refused_by_the_call(room: Mailroom) -> None:
    task, _ = recording(room, typing=False)
    with pytest.raises(TypeError):
        task.delay()
    assert room.waiting() == []


def test_a_call_cannot_have_a_debounce_of_its_own(room: Mailroom) -> None:
    task, _ = recording(room)
    with pytest.raises(InvalidLockConfig, match="debounce is an option of the task"):
        task.apply_async((1,), debounce=3)


# ------------------------------------------------------------------------------ revoked


def test_after_the_last_one_is_revoked_the_next_call_begins_a_burst(
    room: Mailroom, time_machine: Any
) -> None:
    task, runs = recording(room, debounce=5, debounce_max=12)
    start = time.time()
    time_machine.move_to(start, tick=False)
    task.delay(1, "revoked")
    message = room.take()
    drop(task, "job:1", message.ours["moment"])
    time_machine.move_to(start + 10, tick=False)
    task.delay(1, "next")
    eta: Any = maybe_iso8601(room.waiting()[-1].headers["eta"])
    assert round(eta.timestamp() - start) == 15
    room.work_off()
    assert runs == ["next"]


def test_one_that_is_kept_runs_though_the_one_after_it_is_revoked(
    room: Mailroom, time_machine: Any
) -> None:
    task, runs = recording(room, debounce=5, debounce_max=12)
    start = time.time()
    for at in (0, 13):
        time_machine.move_to(start + at, tick=False)
        task.delay(1, at)
    drop(task, "job:1", room.waiting()[1].ours["moment"])
    room.deliver(room.take())
    assert runs == [0]
