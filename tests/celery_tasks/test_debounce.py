"""``debounce``, message by message. With workers: ``tests/hard_cases``."""

from __future__ import annotations

import json
import logging
import random
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from kombu.exceptions import EncodeError

from django_tasklock import InvalidLockConfig, lock
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note
from tests.celery_tasks.conftest import due_in, recording
from tests.mailroom import REDELIVERY, Mailroom, Runs, elsewhere, killed_in_body
from tests.seeds import drawn_seed
from tests.servers import free_port
from tests.steps import LONG, all_of, silent

HOUR_SECONDS = 3600.0


def debounced(room: Mailroom, **options: Any) -> tuple[Any, list[Any]]:
    """A debounced task, and what its runs were called with."""
    return recording(room, **{"debounce": 5, **options})


def reasons(outcomes: list[tuple[str, Any]]) -> list[str]:
    """Why each message was skipped, or what it returned."""
    assert {state for state, _ in outcomes} <= {"SUCCESS"}
    return [value["reason"] if isinstance(value, dict) else value for _, value in outcomes]


# ------------------------------------------------------------------------------ a burst


def test_of_a_burst_the_last_call_runs_with_its_arguments(
    room: Mailroom, caplog: pytest.LogCaptureFixture
) -> None:
    # Given calls that keep coming
    task, runs = debounced(room, debounce=LONG)
    results = [task.delay(1, number) for number in range(30)]
    # I expect each to be sent, for the time when the debounce is over
    assert room.ids() == [result.id for result in results]
    assert all(0 < due_in(message) <= LONG for message in room.waiting())
    # And the last one to run, with its arguments
    with caplog.at_level(logging.INFO):
        outcomes = room.work_off()
    assert (outcomes[-1], runs) == (("SUCCESS", "done:29"), [29])
    # And the others to return a marker and to write a line, which name the last one
    marker = {"status": "skipped", "reason": "debounced", "lock": "job:1"}
    assert [value for _, value in outcomes[:-1]] == [marker | {"holder": results[-1].id}] * 29
    replaced = [record for record in caplog.records if "replaces it" in record.getMessage()]
    assert len(replaced) == 29
    assert results[-1].id in replaced[0].getMessage()


def test_in_any_order_and_from_several_threads_the_last_one_runs_last(room: Mailroom) -> None:
    """Of two workers, the one with the earlier message may be the slower one. ``SEED=…`` makes the
    same order again."""
    chance = random.Random(drawn_seed())
    task, runs = debounced(room)
    for _ in range(5):
        runs.clear()
        all_of(*[lambda: [task.delay(1, time.time_ns()) for _ in range(6)] for _ in range(4)])
        last = max(room.waiting(), key=lambda message: int(message.ours["moment"]))
        while room.waiting():
            room.deliver(room.take(chance.choice(room.ids())))
        assert runs == [last.args[1]]


def test_calls_during_the_run_are_the_next_burst(room: Mailroom) -> None:
    """If the lock is still held when that is due, its last message waits."""
    outcomes: list[str] = []

    def first(self: Any, job: Any) -> None:
        sent.extend(task.delay(job).id for _ in range(3))
        assert all(message.headers["eta"] for message in room.waiting())
        outcomes.extend(elsewhere(room, room.take())[0] for _ in range(3))

    runs = Runs(first, None)
    task = room.task(runs, debounce=5)
    sent = [task.delay(1).id]
    room.deliver(room.take())
    assert outcomes == ["SUCCESS", "SUCCESS", "IGNORED"]
    room.work_off()
    assert runs == [sent[0], sent[-1]]


# ------------------------------------------------------------------------------ debounce_max


@pytest.mark.parametrize(
    ("calls", "dues", "ends"),
    [
        ([0, 4, 8, 11, 11.5], [5, 9, 12, 12, 12], [*["debounced"] * 4, "done:11.5"]),
        # Workers are late: the calls after the end of the burst are another one.
        (
            [0, 6, 13, 14, 20],
            [5, 11, 18, 19, 25],
            ["debounced", "done:6", "debounced", "debounced", "done:20"],
        ),
    ],
    ids=["of the calls up to then the last runs", "later ones do not push its last one away"],
)
def test_a_burst_ends_debounce_max_after_its_first_call(
    room: Mailroom, time_machine: Any, calls: list[float], dues: list[float], ends: list[str]
) -> None:
    task, runs = debounced(room, debounce_max=12)
    start, due = time.time(), list[float]()
    for at in calls:
        time_machine.move_to(start + at, tick=False)
        task.delay(1, at)
        due.append(round(at + due_in(room.waiting()[-1]), 2))
    assert due == dues
    assert reasons(room.work_off()) == ends
    assert runs == [call for call in calls if f"done:{call}" in ends]


# ------------------------------------------------------------------------------ never none


def test_a_sending_that_fails_replaces_nothing(room: Mailroom) -> None:
    task, runs = debounced(room)
    task.delay(1, "sent")
    with pytest.raises(EncodeError):
        task.delay(1, object())
    with (
        room.app.connection_for_write(f"redis://127.0.0.1:{free_port()}") as nowhere,
        pytest.raises(task.OperationalError),
    ):
        task.apply_async((1, "lost"), connection=nowhere, retry=False)
    room.work_off()
    assert runs == ["sent"]


@pytest.mark.parametrize("longest", [None, 20])
@pytest.mark.parametrize("text", ["", "[1,2,3,4,5]", None], ids=["lost", "wrong", "not ours"])
def test_a_note_that_is_lost_or_that_nobody_can_read_replaces_nothing(
    room: Mailroom, text: str | None, longest: float | None
) -> None:
    task, runs = debounced(room, debounce_max=longest)
    task.delay(1, "first")
    task.delay(1, "second")
    (key,) = room.redis.keys(f"*debounce {task.name} *")
    if text is None:
        room.redis.set(key, "null")
    else:
        stores["default"].set_note(Note(f"debounce {task.name} job:1", text, 600))
    room.work_off()
    task.delay(1, "third")
    room.work_off()
    assert runs == ["first", "second", "third"]


@pytest.mark.parametrize("longest", [None, 20])
@pytest.mark.parametrize("ahead", [HOUR_SECONDS, -HOUR_SECONDS])
def test_hosts_whose_clocks_differ(
    room: Mailroom, ahead: float, longest: float | None, time_machine: Any
) -> None:
    """Neither a pending call nor one that ran hides a call from a host that is behind. With
    ``debounce_max`` one call more may run, and never one less."""
    task, runs = debounced(room, debounce_max=longest)
    now = time.time()
    for number, moment in enumerate([now, now + ahead, now + 1, now + ahead + 2]):
        time_machine.move_to(moment, tick=False)
        task.delay(1, number)
        assert -1 < due_in(room.waiting()[-1]) <= 5.1
        if number == 1:
            room.work_off()
    room.work_off()
    assert runs == sorted(runs)
    assert {1, 3} <= set(runs) if longest else runs == [1, 3]


@pytest.mark.parametrize("verbs", [["update_note", "get_note"], ["update_note"]])
def test_a_call_that_the_store_does_not_know_of_is_sent_and_replaces_nothing(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch, verbs: list[str]
) -> None:
    """The store does not answer, or no more once it has said which call was the last one."""
    task, runs = debounced(room, debounce=LONG)
    task.delay(1, "before")
    with monkeypatch.context() as patch:
        silent(patch, *verbs)
        task.delay(1, "silent")
    message = room.waiting()[-1]
    assert ("moment" in message.ours) is (verbs == ["update_note"])
    assert 0 < due_in(message) <= LONG
    outcomes = room.work_off()
    assert runs == ["before", "silent"], outcomes


# ------------------------------------------------------------------------------ a held lock


@pytest.mark.parametrize("conflict", ["skip", "coalesce", "join", lambda holder: "skip"])
def test_a_call_whose_lock_is_held_waits_and_later_ones_replace_it(
    room: Mailroom, conflict: Any
) -> None:
    task, runs = debounced(room, on_conflict=conflict)
    with lock("job:1", ttl=LONG):
        task.delay(1, "first")
        assert room.deliver(room.take())[0] == "IGNORED"
        second = task.delay(1, "second").id
        assert room.deliver(room.take())[1]["reason"] == "debounced"
        for _ in range(3):
            assert room.deliver(room.take(second))[0] == "IGNORED"
    assert reasons(room.work_off()) == ["done:second"]
    assert runs == ["second"]


# ------------------------------------------------------------------------------ redeliveries


def test_a_retry_of_the_body_keeps_its_own_way(room: Mailroom) -> None:
    """A call that came meanwhile does not replace it, and it does not replace that call."""

    def first(self: Any, job: Any) -> None:
        task.delay(job, "second")
        raise self.retry(countdown=0)

    runs = Runs(first, None)
    task = room.task(runs, debounce=5)
    call = task.delay(1, "first")
    assert room.deliver(room.take())[0] == "RETRY"
    second, retry = room.waiting()
    assert (second.args[1], "moment" in second.ours) == ("second", True)
    assert (retry.args[1], "moment" in retry.ours) == ("first", False)
    room.work_off()
    assert runs == [call.id, second.id, call.id]


def test_one_whose_run_was_killed_runs_again_and_is_dropped_after_that(room: Mailroom) -> None:
    """Also if a later call has come, which is of the next burst."""
    task, runs = debounced(room, acks_late=True)
    task.delay(1, "first")
    message = room.take()
    killed_in_body(room, message)
    task.delay(1, "second")
    states = room.deliveries(message, REDELIVERY, REDELIVERY)
    room.work_off()
    assert (states, runs) == (["SUCCESS", "IGNORED"], ["first", "second"])


# ------------------------------------------------------------------------------ other calls


def test_calls_that_are_not_debounced(room: Mailroom) -> None:
    """Each is sent as it is, is not replaced, and replaces nothing."""
    task, runs = debounced(room)
    replaced = room.task(lambda self, job: self.replace(task.s(1, "replaces")), lock_name="o:{job}")
    task.delay(1, "debounced")
    eta = datetime.now(timezone.utc) + timedelta(seconds=100)
    task.apply_async((1, "countdown"), countdown=100)
    task.apply_async((1, "eta"), eta=eta)
    task.send_anyway((1, "anyway"))
    task.apply_async((1, "short"), expires=3)
    room.app.send_task(task.name, (1, "by name"), queue=room.queue)
    room.deliver(room.take(replaced.delay(1).id))
    _, countdown, at, *at_once = room.waiting()
    assert 90 < due_in(countdown) <= 100
    assert 90 < due_in(at) <= 100
    assert [message.headers["eta"] for message in at_once] == [None] * 4
    assert sum("moment" in message.ours for message in room.waiting()) == 1
    room.work_off()
    assert runs == ["debounced", "countdown", "eta", "anyway", "short", "by name", "replaces"]


def test_what_a_call_gives_stays_and_it_gives_no_debounce(room: Mailroom) -> None:
    """The same task id each time is no hindrance."""
    task, runs = debounced(room)
    given: Any = {"headers": {"mine": 1}, "shadow": "other", "expires": 100, "task_id": "mine"}
    for number in range(3):
        task.apply_async((1, number), **given)
    headers = room.waiting()[0].headers
    assert (headers["mine"], headers["shadow"], headers["id"]) == (1, "other", "mine")
    assert headers["expires"] is not None
    room.work_off()
    assert runs == [2]
    with pytest.raises(InvalidLockConfig, match="debounce is an option of the task"):
        task.apply_async((1,), debounce=3)
    with pytest.raises(TypeError):
        debounced(room, typing=False)[0].delay()


def test_a_run_beside_the_holder_of_the_lock_ends_the_burst_too(room: Mailroom) -> None:
    task, runs = debounced(room, on_conflict="run")
    with lock("job:1", ttl=LONG):
        task.delay(1, "last")
        assert elsewhere(room, room.take())[0] == "SUCCESS"
    noted = stores["default"].get_note(f"debounce {task.name} job:1")
    assert (runs, json.loads(noted or "")[1]) == (["last"], 0)
