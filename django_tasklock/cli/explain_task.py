"""``manage.py locks explain``: which lock a call of a task would take, and what it would meet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import inf
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .._engine.service import LockService
from .._values.lock_info import LockInfo
from .._values.words import duration, printable
from ..exceptions import StoreUnavailable
from ..operators.held import held_permits
from ..operators.holders import Holder, command_line, holder_of, sentence
from ..operators.rows import RowNow, row_of
from ..operators.work import Explanation, tasks
from .arguments import add_format
from .tables import json_row, write_fields

WHY_HELD = {
    Holder.COOLING: " for a while: it is cooling", Holder.OPERATOR: " by an operator",
    Holder.GONE: " by a process that is gone. A call on this host may take the lock over",
}  # fmt: skip


def add_arguments(parser: CommandParser) -> None:
    """Add the call: a task's name and its arguments."""
    parser.add_argument("task_name", metavar="TASK", help="its full name")
    parser.add_argument("arguments", nargs="?", default="[]", metavar="ARGS")
    add_format(parser)
    parser.set_defaults(store=None)


def explain_task(command: BaseCommand, **options: Any) -> None:
    """
    Say what a call of a task would meet now, which lock it would take, and why.

    ARGS are the call's arguments: a JSON array, or an object of names and values.
    It asks the task's own store (lock_store), and takes no other --store.

    examples:
      manage.py locks explain videos.tasks.process '[123]'
      manage.py locks explain videos.tasks.process '{"video_id": 123}'
    """
    found = _explained(options["task_name"], options["arguments"])
    if options["store"] not in (None, found.task.lock_store):
        raise CommandError(f"The task's store is {found.task.lock_store!r}: leave out --store.")
    row, copy, held = row_of(found), None, list[LockInfo]()
    service = found.task.locks
    try:
        held = _holders(service, found.name, found.slots)
        full = (_full(service, *limit) for limit in found.limits.items())
        copy = tasks().duplicate_of(found)
        verdict = _verdict(found, held, copy, next(filter(None, full), ""), row)
    except StoreUnavailable as error:
        verdict = f"Not known: {error}"
    where = {"store": service.alias, "key": service.store.key(found.name)}
    fields = found._asdict() | {"task": found.task.name} | where
    if options["format"] == "json":
        fields |= {
            "verdict": verdict,
            "held": [json_row(info) for info in held],
            "duplicate_of": copy.owner.task_id if isinstance(copy, LockInfo) else copy,
            "row": row._asdict() if isinstance(row, RowNow) else row,
        }
        command.stdout.write(json.dumps(fields, indent=2, default=str))
        return
    command.stdout.write(f"{printable(verdict)}\n")
    now = {f"permit #{info.slot} now" if info.slot else "lock now": sentence(info) for info in held}
    write_fields(command, fields | {"row now": row} | now)


def _explained(task: str, arguments: str) -> Explanation:
    try:
        call = json.loads(arguments)
        positional, named = (call, {}) if isinstance(call, list) else ((), dict(call))
    except (TypeError, ValueError) as error:
        wrong = f"ARGS must be a JSON array or object, such as '[123]', not {arguments!r:.100}."
        raise CommandError(wrong) from error
    try:
        if found := tasks().explain_call(task, positional, named):
            return found
    except ImportError as error:
        raise CommandError(f"The tasks are not known: {printable(error)}") from error
    except (TypeError, ValueError) as error:
        raise CommandError(f"{task} cannot be called like that: {printable(error)}") from error
    raise CommandError(f"No task {printable(task)} takes a lock. Check its full name.")


def _holders(service: LockService, name: str, slots: int) -> list[LockInfo]:
    """What holds the lock, and its first permits: a call takes one of those, with slots, unless
    somebody has the lock of that name itself."""
    found = held_permits(service, name) if slots > 1 else []
    permits = [info for info in found if (info.slot or 0) <= slots]
    return [info for info in (service.get(name), *permits) if info is not None]


def _full(service: LockService, name: str, slots: int) -> str:
    """What a call would meet that has its lock, but no permit of this limit; "": nothing."""
    held = _holders(service, name, slots)
    if held and held[0].name == name:
        return f"Would be requeued: {name} is held{WHY_HELD.get(holder_of(held[0]), '')}."
    full = f"Would be requeued: {slots} of {slots} permits of {name} are held."
    return full if len(held) == slots else ""


def _verdict(
    found: Explanation, held: Sequence[LockInfo], copy: str | LockInfo | None, full: str, row: Any
) -> str:
    """What a call would meet now, in one sentence. ``full``: what it would meet under its lock."""
    name, task = found.name, found.task
    if isinstance(copy, LockInfo):
        return f"Would not be sent: the run {copy.owner.task_id} does this job."
    if copy is not None:
        clear = command_line(
            "clear", found.unique_name or name, store=task.lock_store, options="--queued"
        )
        said = f"Would not be sent: the message {copy} is queued for this job."
        return f"{said} If that message is gone: {clear}"
    lock = next((info for info in held if info.name == name), None)
    if lock is None and len(held) < found.slots:
        if full:
            return full
        if isinstance(row, RowNow) and row.refused is not None:
            return f"Would be skipped: a claim of {row.row} would fail ({row.refused})."
        if reason := task.locks.store.cannot_write(name):
            return f"Would get no lock: the store grants none: {reason}."
        when = f"in {duration(task.debounce)}" if task.debounce else "now"
        unread = f"get the lock {when} (its row is not known)"
        does = unread if isinstance(row, str) else f"run {when}"
        if found.slots == 1:
            return f"Would {does}: nobody holds {name}."
        return f"Would {does}: {len(held)} of {found.slots} permits of {name} are held."
    if lock is not None and lock.unknown:
        return f"Would be requeued: {name} is held in a form that this version does not know."
    if lock is not None and lock.held_by is not None:
        return f"Would be requeued until the hold ends: {name} is held by {lock.owner.operator}."
    does = task.conflict.outcome
    if task.debounce and task.conflict.skips and not task.conflict.replaces:
        does = "be requeued, to try again later"
    if task.lock_wait in (None, inf):
        does = "wait for as long as it takes"
    elif task.lock_wait:
        does = f"wait up to {duration(task.lock_wait)}, then {does}"
    return f"Would {does}: {name} is held{WHY_HELD.get(holder_of(held[0]), '')}."
