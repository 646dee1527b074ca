"""A message that starts when its redelivery has run: nothing marks it as delivered before.

A worker had it all the time, until its ETA or behind a long task; or it was requeued, and the
broker did not learn that. With workers: ``tests/hard_cases/test_redelivery.py``.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from django_tasklock import lock, locks
from django_tasklock.exceptions import TooManyAttempts
from tests.conftest import UseCaches
from tests.mailroom import Mailroom, Message, elsewhere
from tests.steps import Meanwhile, killed_in_child, taken, waiting
from tests.waiting import until


def counting(room: Mailroom, **options: Any) -> tuple[Any, list[Any]]:
    """A task, and the runs of its body."""
    runs: list[Any] = []
    return room.task(lambda self, job: runs.append(job), acks_late=True, **options), runs


def sent_long_ago(message: Message, seconds: float) -> Message:
    message.ours["sent"] -= seconds
    return message


@pytest.mark.parametrize("ignore", [False, True], ids=["result", "no result"])
@pytest.mark.parametrize("options", [{}, {"lock_slots": 2}, {"lock_wait": 5}], ids=str)
def test_it_is_dropped(room: Mailroom, options: dict[str, Any], ignore: bool) -> None:
    task, runs = counting(room, ignore_result=ignore, **options)
    task.delay(1)
    message = room.take()
    assert room.deliver(message, redelivered=True)[0] == "SUCCESS"
    assert room.deliver(message)[0] == "IGNORED"
    assert runs == [1]
    assert not locks.count("job:1")


@pytest.mark.parametrize("store", ["locmem", "files", "memory"])
def test_it_is_dropped_on_other_stores(
    room: Mailroom, use_caches: UseCaches, tmp_path: Path, store: str
) -> None:
    backends = {"locmem": "locmem.LocMemCache", "files": "filebased.FileBasedCache"}
    cache = {
        "BACKEND": f"django.core.cache.backends.{backends.get(store, 'dummy.DummyCache')}",
        "LOCATION": str(tmp_path / "cache"),
    }
    memory = {"BACKEND": "django_tasklock.stores.memory.MemoryStore"}
    use_caches({"default": cache}, {"default": memory if store == "memory" else {}})
    task, runs = counting(room, ignore_result=True)
    task.delay(1)
    message = room.take()
    room.deliver(message, redelivered=True)
    assert room.deliver(message)[0] == "IGNORED"
    assert runs == [1]


def test_one_that_was_sent_by_name_is_dropped_too(room: Mailroom) -> None:
    """It does not say when it was sent, but has an id of its own."""
    task, runs = counting(room, ignore_result=True)
    room.app.send_task(task.name, [1])
    message = room.take()
    assert room.deliver(message, redelivered=True)[0] == "SUCCESS"
    assert room.deliver(message)[0] == "IGNORED"
    assert runs == [1]


def test_it_is_dropped_after_it_has_waited_for_the_lock(room: Mailroom) -> None:
    """The redelivery has the lock while it begins to wait, in a process that has waited before."""
    task, runs = counting(room, ignore_result=True, lock_wait=30)
    with lock("job:1", ttl=60):
        task.delay(1)
        first = Meanwhile(lambda: room.deliver(room.take()))
        until(lambda: waiting("job:1"), "a waiter")
    first.result()
    task.delay(1)
    message = room.take()
    with lock("job:1", ttl=60):
        redelivery = Meanwhile(lambda: room.deliver(message, redelivered=True))
        until(lambda: waiting("job:1"), "the redelivery waits")
        original = Meanwhile(lambda: room.deliver(message))
        until(lambda: waiting("job:1") == 2, "both wait")
    assert {redelivery.result()[0], original.result()[0]} == {"SUCCESS", "IGNORED"}
    assert runs == [1, 1]


def test_a_requeued_message_and_a_redelivery_of_what_it_replaced(room: Mailroom) -> None:
    """Its worker was killed after it had requeued the message, and before it acknowledged it."""
    task, runs = counting(room, on_conflict="retry")
    task.delay(1)
    message = room.take()
    with lock("job:1", ttl=60):
        assert elsewhere(room, message)[0] == "IGNORED"
    assert elsewhere(room, message, redelivered=True)[0] == "SUCCESS"
    assert [state for state, _ in room.work_off()] == ["IGNORED"]
    assert runs == [1]


@pytest.mark.parametrize(
    "options", [{"on_conflict": "coalesce"}, {"unique_while": "queued", "on_conflict": "retry"}],
    ids=["coalesce", "unique"],
)  # fmt: skip
def test_it_runs_if_others_rely_on_it(room: Mailroom, options: dict[str, Any]) -> None:
    """It has waited for another holder of the lock after its redelivery had run."""
    task, runs = counting(room, **options)
    task.delay(1)
    message = room.take()
    assert room.deliver(message, redelivered=True)[0] == "SUCCESS"
    with lock("job:1", ttl=60):
        assert elsewhere(room, message)[0] == "IGNORED"
        task.delay(1)  # Refused because of it, or skipped.
        for other in room.waiting():
            if other.id != message.id:
                assert elsewhere(room, room.take(other.id))[0] == "SUCCESS"
    assert room.ids() == [message.id]
    assert room.work_off() == [("SUCCESS", None)]
    assert len(runs) == 2


def test_the_death_of_its_redelivery_counts_and_so_does_its_own(room: Mailroom) -> None:
    test = os.getpid()

    def die(self: Any, job: Any) -> None:
        if os.getpid() != test:
            os.kill(os.getpid(), signal.SIGKILL)

    room.task(die, acks_late=True, lock_max_attempts=2).delay(1)
    message = room.take()
    killed_in_child(lambda: room.deliver(message, redelivered=True))
    locks.clear("job:1")
    killed_in_child(lambda: room.deliver(message))
    locks.clear("job:1")
    state, error = room.deliver(message)
    assert (state, type(error)) == ("FAILURE", TooManyAttempts)


def test_one_that_failed_runs_again(room: Mailroom) -> None:
    """As a redelivery of it would."""
    runs: list[Any] = []

    def work(self: Any, job: Any) -> None:
        runs.append(job)
        if len(runs) == 1:
            raise LookupError

    room.task(work, acks_late=True).delay(1)
    message = room.take()
    assert room.deliver(message, redelivered=True)[0] == "FAILURE"
    assert room.deliver(message)[0] == "SUCCESS"
    assert len(runs) == 2


@pytest.mark.parametrize(("age", "times"), [(30.0, 2), (7200.0, 1)])
def test_an_old_message_is_looked_up_when_its_note_has_ended(
    room: Mailroom, age: float, times: int
) -> None:
    """The result is kept for longer. Older than the broker waits for an acknowledgement by default:
    an hour, on Redis."""
    task, runs = counting(room)
    task.delay(1)
    message = room.take()
    assert room.deliver(message)[0] == "SUCCESS"
    for key in room.redis.scan_iter("*"):
        if b"note" in key or b"run" in key:
            room.redis.delete(key)
    room.deliver(sent_long_ago(message, age))
    assert len(runs) == times


def test_the_visibility_timeout_says_what_is_old(room: Mailroom) -> None:
    room.app.conf.broker_transport_options = {"visibility_timeout": 20}
    task, runs = counting(room)
    task.delay(1)
    message = room.take()
    task.backend.store_result(message.id, None, "SUCCESS")
    assert room.deliver(sent_long_ago(message, 30.0))[0] == "IGNORED"
    assert runs == []


def test_a_task_id_that_is_used_again_runs(room: Mailroom) -> None:
    """Each sending has its own notes; and one that does not say when it was sent runs too."""
    task, runs = counting(room, ignore_result=True)
    for _ in range(2):
        task.apply_async([1], task_id="daily")
        assert room.deliver(room.take())[0] == "SUCCESS"
    for _ in range(2):
        room.app.send_task(task.name, [1], task_id="daily")
        assert room.deliver(room.take())[0] == "SUCCESS"
    assert len(runs) == 4


def test_a_run_that_dies_under_a_task_id_that_is_used_again_is_not_taken_for_the_one_before(
    room: Mailroom,
) -> None:
    task, runs = counting(room, ignore_result=True)
    room.app.send_task(task.name, [1], task_id="daily")
    assert room.deliver(room.take())[0] == "SUCCESS"
    room.app.send_task(task.name, [1], task_id="daily")
    message = room.take()

    def dies() -> None:
        task.run = lambda job: os.kill(os.getpid(), signal.SIGKILL)
        room.deliver(message)

    killed_in_child(dies)
    locks.clear("job:1")
    assert room.deliver(message, redelivered=True)[0] == "SUCCESS"
    assert len(runs) == 2


def test_a_redelivery_that_waited_looks_for_the_result_without_the_lock(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was handed the lock when the first run ended. A call meanwhile is not skipped for it."""
    runs: list[str] = []
    outcomes: list[Any] = []
    ended: list[bool] = []

    def work(self: Any, job: Any) -> None:
        runs.append(self.request.id)
        if len(runs) == 1:
            redelivery.append(Meanwhile(lambda: room.deliver(message, redelivered=True)))
            until(lambda: waiting("job:1"), "the redelivery waits")

    redelivery: list[Meanwhile[Any]] = []
    task = room.task(work, acks_late=True)
    task.delay(1)
    message = room.take()
    ask = type(task.backend).get_task_meta

    def slow(backend: Any, *args: Any, **kwargs: Any) -> Any:
        if ended and not outcomes:
            outcomes.append(None)
            other = task.delay(1).id
            outcomes[0] = elsewhere(room, room.take(other))
        return ask(backend, *args, **kwargs)

    monkeypatch.setattr(type(task.backend), "get_task_meta", slow)
    release = type(locks.store).release_with_note

    def released(*args: Any) -> bool:
        ended.append(True)
        return bool(release(*args))

    monkeypatch.setattr(type(locks.store), "release_with_note", released)
    assert room.deliver(message)[0] == "SUCCESS"
    assert redelivery[0].result()[0] == "IGNORED"
    assert [state for state, _ in outcomes] == ["SUCCESS"]
    assert outcomes[0][1] is None, "it was skipped"
    assert len(runs) == 2


@pytest.mark.parametrize("what", ["cools", "is held by an operator", "is held by other code"])
def test_an_old_message_that_nobody_else_had_is_skipped_as_a_new_one(
    room: Mailroom, what: str
) -> None:
    """As in a backlog, or after a countdown of hours."""
    task, runs = counting(room, lock_cooldown=60.0 if what == "cools" else 0)
    if what == "cools":
        task.delay(1)
        assert room.deliver(room.take())[0] == "SUCCESS"
    elif what == "is held by an operator":
        locks.hold("job:1", 60, by="alice", reason="")
    else:
        held = Meanwhile(lambda: taken("job:1", ttl=60)).result()
        assert held.token
    before = len(runs)
    task.delay(1)
    state, marker = room.deliver(sent_long_ago(room.take(), 7200.0))
    assert (state, marker["status"]) == ("SUCCESS", "skipped")
    assert not room.waiting()
    assert len(runs) == before


def test_it_is_dropped_where_started_overwrites_the_result(room: Mailroom) -> None:
    """As with django-celery-results and ``task_track_started``."""
    backend = "tests.overwriting_backend:OverwritingBackend"
    room.app.conf.update(result_backend=backend, task_track_started=True)
    task, runs = counting(room)
    task.delay(1)
    message = room.take()
    assert room.deliver(message, redelivered=True)[0] == "SUCCESS"
    assert room.deliver(message)[0] == "IGNORED"
    assert not room.waiting()
    assert room.app.backend.get_task_meta(message.id)["status"] == "SUCCESS"
    assert runs == [1]
