"""What tests do with the inside of the package; whoever changes that changes this file alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

import pytest

from django_tasklock import Lease, LockInfo
from django_tasklock._engine import history, jobs, waiting
from django_tasklock._engine import keeper as keeper_module
from django_tasklock._engine.acquiring import Acquiring, How
from django_tasklock._engine.keeper import keeper_of
from django_tasklock._engine.lease import Use
from django_tasklock._engine.own_token import OwnToken
from django_tasklock._engine.waiting import blocking
from django_tasklock._values import clock, processes
from django_tasklock._values import owner as owner_module
from django_tasklock._values.event import Kind
from django_tasklock._values.handle import read_handle
from django_tasklock._values.owner import COOLING, MARK, Owner, owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note

__all__ = [
    "COOLING", "MARK", "Owner", "as_before_a_checkpoint", "ask_again_after", "asked", "clock",
    "forget_all", "fork_untold", "give_up", "given_up", "is_renewed", "keep_events_for", "kept",
    "look_often", "looks_before", "new_token", "note", "owner_record", "poll_after",
    "queue_events_in", "read_handle", "unreserve_later", "write_events",
]  # fmt: skip


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


# -- A

__all__ += ["name_follow_up"]


def name_follow_up(task: Any, message: Any) -> str:
    """Have the store's note name this message of a mailroom as the follow-up of the runs under its
    lock (``on_conflict="coalesce"``). Returns the note's key."""
    job = f"{task.name} {message.ours['name']}"
    ((key, text),) = task.conflict.reserves(job, message.id, message.ours).items()
    assert task.locks.store.reserve(key, text, 60.0) is None
    return str(key)
