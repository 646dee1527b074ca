"""
What tests do with the inside of the package; whoever changes that changes this file alone.

* At the top is what needs neither Django's apps nor Celery nor a store's library: this file may be
  imported before Django is set up.
* `LATER` names the rest. It is imported when a test asks for it; to mypy it is ``Any``.
* Below are the tests' own words for what they do with all that, a heading for each room.
"""

from __future__ import annotations

import pkgutil
from collections import deque
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any
from weakref import WeakValueDictionary

import pytest

from django_tasklock import Lease, LockInfo
from django_tasklock._engine import aio, history, jobs, waiting
from django_tasklock._engine import keeper as keeper_module
from django_tasklock._engine.acquiring import Acquiring, How
from django_tasklock._engine.keeper import keeper_of
from django_tasklock._engine.lease import Use
from django_tasklock._engine.own_token import OwnToken
from django_tasklock._engine.waiting import blocking
from django_tasklock._values import clock as clock
from django_tasklock._values import owner as owner_module
from django_tasklock._values import processes
from django_tasklock._values.event import Kind
from django_tasklock._values.handle import read_handle as read_handle
from django_tasklock._values.owner import COOLING as COOLING
from django_tasklock._values.owner import MARK as MARK
from django_tasklock._values.owner import Owner as Owner
from django_tasklock._values.owner import operator_record as operator_record
from django_tasklock._values.owner import owner_record as owner_record
from django_tasklock._values.slots import permit_names as permit_names
from django_tasklock._values.tokens import new_token as new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note

LATER = {
    # Operators, the command and the admin
    "MOST_EVENTS": "operators.clearing:MOST_EVENTS",
    "Outcome": "operators.clearing:Outcome",
    "clear_all": "operators.clearing:clear_all",
    "diagnose": "operators.doctor:diagnose",
    "as_seen": "operators.held:as_seen",
    "digest_of": "operators.held:digest_of",
    "held_permits": "operators.held:held_permits",
    "Holder": "operators.holders:Holder",
    "command_line": "operators.holders:command_line",
    "holder_of": "operators.holders:holder_of",
    "meaning": "operators.holders:meaning",
    "sentence": "operators.holders:sentence",
    "requeue": "operators.lost_work:requeue",
    "still_lost": "operators.lost_work:still_lost",
    "clear_job": "operators.reservations:clear_job",
    "key_of": "operators.reservations:key_of",
    "queued_jobs": "operators.reservations:queued_jobs",
    "row_if_known": "operators.rows:row_if_known",
    "json_row": "cli.tables:json_row",
    "lock_cells": "cli.tables:lock_cells",
    "lock_of": "admin.rows:lock_of",
    "seen_lock": "admin.rows:seen_lock",
    # Stores
    "Keys": "stores.redis.keys:Keys",
    "SCRIPTS": "stores.redis.connections:SCRIPTS",
    "RedisWaiter": "stores.redis.waiter:RedisWaiter",
    "ReplicaWait": "stores.redis.replicas:ReplicaWait",
    "Replicas": "stores.redis.replicas:Replicas",
    "Connection": "stores.database.connections:Connection",
    "TABLE": "stores.database.store:TABLE",
    "event_of": "stores.event_text:event_of",
    "text_of": "stores.event_text:text_of",
    # Celery
    "LockedRequest": "celery.request:LockedRequest",
    "Row": "celery.row:Row",
    "Run": "celery.run:Run",
    "RunNote": "celery.note:RunNote",
    "active_apps": "_compat.celery:active_apps",
    "counts_parts_once": "_compat.celery:counts_parts_once",
    "queue_of_calls": "_compat.celery:queue_of_calls",
    # Options of tasks, and what the tables of the docs have
    "OPTIONS": "celery.options:OPTIONS",
    "check_call": "celery.option_checks:check_call",
    "explain_call": "celery.for_operators:explain_call",
    "duplicate_of": "celery.for_operators:duplicate_of",
    "check_tasks": "celery.checks:check_tasks",
    "KINDS": "operators.problems:KINDS",
    "COUNTERS": "contrib.measures:COUNTERS",
    "HISTOGRAMS": "contrib.measures:HISTOGRAMS",
    "LockCollector": "contrib.prometheus.state:LockCollector",
}


def __getattr__(name: str) -> Any:
    """What is named in `LATER`, so that ``from tests.inside import diagnose`` is all one writes."""
    if name not in LATER:
        raise AttributeError(f"tests.inside has no {name!r}: add it to LATER, or a function")
    return pkgutil.resolve_name(f"django_tasklock.{LATER[name]}")


# -- the engine


def asked(
    name: str, *, task: str | None = None, task_id: str | None = None, token: str | None = None,
    note: Note | None = None, **options: Any,
) -> Lease | LockInfo:  # fmt: skip
    """What becomes of a task's question for its lock."""
    use = Use()
    acquiring = Acquiring(
        How(**options), name, use, use.record(task, task_id), token=token, note=note
    )
    won = blocking(acquiring.steps())
    return won.alone() if isinstance(won, Lease) else won


def kept(alias: str = "default") -> int:
    """How many tokens and notes the thread of a store looks after."""
    keeper = keeper_of(stores[alias])
    return len(keeper.table) + len(keeper.jobs)


def give_up(lease: Lease, note: Note | None = None) -> None:
    """Leave a lease to that thread, as a call does that was interrupted."""
    lease._own.note = note
    lease.give_up()


def unreserve_later(key: str, text: str) -> None:
    """Leave a note to that thread, as a call does that got no answer."""
    keeper_of(stores["default"]).unreserve_later(key, text, 600.0)


def ask_again_after(monkeypatch: pytest.MonkeyPatch, *, seconds: float) -> None:
    """Have waiters ask again so long after their question."""
    monkeypatch.setattr(waiting, "LONGEST_SILENCE_SECONDS", seconds)


def look_often(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have stores' threads look so often for what nobody refers to any more."""
    monkeypatch.setattr(jobs, "LOOK_SECONDS", seconds)


def as_before_a_checkpoint(monkeypatch: pytest.MonkeyPatch, fields: Mapping[str, Any]) -> None:
    """Have this process know of itself what it was before it was restored, and not read it yet."""
    known = {**owner_module.this_process(), **fields}
    monkeypatch.setattr(owner_module, "_this_process", known)


def poll_after(monkeypatch: pytest.MonkeyPatch, *, seconds: float) -> None:
    """Have waiters poll so seldom."""
    monkeypatch.setattr(waiting, "FIRST_POLL_SECONDS", seconds)
    monkeypatch.setattr(waiting, "MAX_POLL_SECONDS", seconds)


def forget_all() -> None:
    """Have all stores' threads forget what they look after."""
    for each in jobs.all_jobs():
        for kept in (each.tokens, each.new, each.planned, each.notes):
            kept.clear()
        history.history_of(each.store).events.clear()


def is_renewed(*names: str) -> bool:
    """Whether a lease on one of these locks, or on any, is to be extended by this process."""
    tokens = [own for each in jobs.all_jobs() for own in list(each.tokens.values())]
    found = [own for own in tokens if own.renew and own.since is not None]
    return any(not names or {*names} & {*own.names} for own in found)


def looks_before(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """Have the store's thread look just before this method of a lease is called."""
    method = getattr(Lease, verb)

    def called(lease: Lease) -> object:
        lease._keeper.jobs.work()
        return method(lease)

    monkeypatch.setattr(Lease, verb, called)


def given_up(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the store's threads, or callers, are about to give up, each time anew."""
    tokens: list[object] = []
    give_up = keeper_module.Keeper.give_up

    def noted(keeper: keeper_module.Keeper, own: OwnToken, **options: bool) -> None:
        tokens.append(own)
        give_up(keeper, own, **options)

    monkeypatch.setattr(keeper_module.Keeper, "give_up", noted)
    return tokens


def queue_events_in(queue: deque[Any]) -> None:
    """Have the events wait there until they are written."""
    history.history_of(stores["default"]).events = queue


def note(kind: Kind, name: str, owner: Mapping[str, Any] | Owner) -> None:
    """Have an event written."""
    history.note_event(stores["default"], kind, name, owner)


def write_events() -> None:
    """Write the events at once."""
    history.write_events(stores["default"])


def keep_events_for(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have events come together for so long before they are written."""
    monkeypatch.setattr(history, "BATCH_SECONDS", seconds)


def fork_untold(fork: Callable[[], int]) -> int:
    """Fork, and have the package's handler of `os.register_at_fork` find nothing to do."""
    known, processes._all = processes._all, WeakValueDictionary()
    try:
        return fork()
    finally:
        processes._all = known


def forget_threads_that_are_awaited() -> None:
    """End the use of the threads in which awaited calls are made: they keep their settings."""
    aio._pool.cache_clear()


# -- the tables of the docs


def usual_options() -> dict[str, Any]:
    """What a caller may say of a lock, with the defaults."""
    return {each.name: each.default for each in signature(How).parameters.values()}


# -- conflicts, and messages that wait


def name_follow_up(task: Any, message: Any) -> str:
    """Have the store's note name this message of a mailroom as the follow-up of the runs under its
    lock (``on_conflict="coalesce"``). Returns the note's key."""
    job = f"{task.name} {message.ours['name']}"
    ((key, text),) = task.conflict.reserves(job, message.id, message.ours).items()
    assert task.locks.store.reserve(key, text, 60.0) is None
    return str(key)


def held_for(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have every lock that refuses a message seem to be held for so long."""
    from django_tasklock.celery import requeue

    monkeypatch.setattr(requeue, "age", lambda _: seconds)


def waits_asked_for(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """How long runs want to wait for their locks, each time; none of them does."""
    from django_tasklock.celery.run import Run

    real, waits = Run._acquire, list[float | None]()

    def acquire(run: Run, wait: float | None) -> Lease | LockInfo:
        waits.append(wait)
        return real(run, 0)

    monkeypatch.setattr(Run, "_acquire", acquire)
    return waits
