"""``manage.py locks explain``: which lock a call of a task would take."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .._engine.service import locks
from .._values.describe import duration, printable
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from ..exceptions import StoreUnavailable
from ..operators.explain import Explanation, duplicate_of, explain, row_of, similar_tasks
from ..operators.hints import command_line
from ..operators.permits import held_permits, in_words
from ..operators.row_now import RowNow
from ..operators.work import CeleryMissing
from .verb import Verb

__all__ = ["VERB", "explain_task"]


def add_arguments(parser: CommandParser) -> None:
    """Add the call: a task's name and its arguments."""
    parser.add_argument("task_name", metavar="TASK")
    parser.add_argument(
        "arguments",
        nargs="?",
        default="[]",
        metavar="ARGS",
        help="the call's arguments: a JSON array, or an object of names and values",
    )


def explain_task(command: BaseCommand, **options: Any) -> None:
    """Print which lock the call would take, why, who holds it now, and the row it would claim.

    Raises `CommandError` for a task without a lock, a call that does not fit it, and tasks that
    cannot be imported.
    """
    task = options["task_name"]
    args, kwargs = _call(options["arguments"])
    try:
        found = explain(task, args, kwargs)
    except CeleryMissing as error:
        raise CommandError(printable(error)) from error
    except ImportError as error:
        raise CommandError(f"A module with tasks cannot be imported: {printable(error)}") from error
    except (TypeError, ValueError) as error:
        raise CommandError(f"{task} cannot be called like that: {printable(error)}") from error
    if found is None:
        raise CommandError(f"No task {printable(task)} takes a lock.{_did_you_mean(task)}")
    held: LockInfo | str | None
    permits: list[LockInfo] = []
    waiting: list[Owner] = []
    copy: LockInfo | str | None = None
    silent = False
    try:
        service = locks.using(found.store)
        # With slots a call takes a permit: the lock of that name itself is another one.
        held = service.get(found.name) if found.slots == 1 else None
        if held is None:
            permits = held_permits(service, found.name)
            waiting = service.waiters(found.name) if permits or found.slots > 1 else []
        copy = duplicate_of(found)
    except StoreUnavailable as error:
        held, silent = str(error), True
    row = row_of(found)
    if options["format"] == "json":
        more = {
            "held": held.as_json() if isinstance(held, LockInfo) else held,
            "permits": [info.as_json() for info in permits],
            "duplicate_of": _task_id(copy),
            "row": row.as_json() if isinstance(row, RowNow) else row,
        }
        command.stdout.write(json.dumps(found.as_json() | more, indent=2))
        return
    wait = "for ever" if found.wait is None else f"{found.wait:g}s"
    lines = {
        "task": found.task,
        "lock": found.name,
        "why": found.why,
        "arguments": ", ".join(f"{key}={value}" for key, value in found.arguments.items()),
        "store": found.store,
        "ttl": f"{duration(found.ttl)}, {'renewed' if found.renew else 'not renewed'}",
        "waits": wait,
        "slots": str(found.slots),
        "on conflict": found.on_conflict,
        "guard": found.guard,
    }
    for option, text in found.guard_options.items():
        if option != "failed":  # `guard` has it.
            lines[option.replace("_", " ")] = text
    if row is not None:
        lines["row now"] = str(row)
    if found.slots == 1:
        del lines["slots"]
    lines["held now"] = in_words(permits, waiting) if permits or waiting else _holder(held)
    if found.debounce is not None:
        lines["debounce"] = _debounce(found.debounce, found.debounce_max)
    if found.unique_while is not None:
        lines["unique"] = _unique(found)
        lines["duplicate"] = "not known" if silent else _duplicate(found, copy)
    width = max(map(len, lines)) + 2
    for label, value in lines.items():
        command.stdout.write(f"{label + ':':<{width}}{printable(value or '-')}")


def _holder(held: LockInfo | str | None) -> str:
    if held is None:
        return "no"
    if isinstance(held, str):
        return held
    if held.held_by is not None and held.ttl is not None:
        try:
            ends = datetime.now(timezone.utc) + timedelta(seconds=held.ttl)
        except OverflowError:  # After the year 9999: other code has given the key that TTL.
            return f"by {held.owner} for {duration(held.ttl)}"
        return f"by {held.owner} until {ends.isoformat(timespec='seconds')} ({duration(held.ttl)})"
    if held.cooling:
        left = "and never expires" if held.ttl is None else f"for {duration(held.ttl)} more"
        return f"cooling down {left}, after {held.owner}"
    gone = " (gone)" if held.owner.alive() is False else ""
    if held.detached:
        gone = " (detached: waits for its run)"
    wait = held.longest_wait
    waits = "" if wait is None else f"; {held.waiters} waiting, the longest for {duration(wait)}"
    return ("by other code" if held.token is None else f"by {held.owner}{gone}") + waits


def _did_you_mean(task: str) -> str:
    similar = similar_tasks(task)
    return f" Did you mean {printable(' or '.join(similar))}?" if similar else ""


def _debounce(seconds: float, longest: float | None) -> str:
    most = "" if longest is None else f", {duration(longest)} after the first at most"
    return f"the last of several calls runs, {duration(seconds)} after it came{most}"


def _unique(found: Explanation) -> str:
    until = "it starts" if found.unique_while == "queued" else "it has ended"
    return f"until {until}, waiting {duration(found.unique_for or 0)} at most"


def _duplicate(found: Explanation, copy: LockInfo | str | None) -> str:
    """Whether a call would be one now, and why."""
    if copy is None:
        return "no, a call would be sent"
    result = (
        "raises AlreadyQueued" if found.on_duplicate == "raise" else "returns that one's result"
    )
    if isinstance(copy, LockInfo):
        return f"yes, of the run {_task_id(copy)}, which holds the lock: a call {result}"
    command = command_line("clear", found.name, store=found.store, options="--queued")
    return (
        f"yes, the queue is reserved for the message {copy}: a call {result}. "
        f"If that message is gone: {command}"
    )


def _task_id(copy: LockInfo | str | None) -> str | None:
    return copy.owner.task_id if isinstance(copy, LockInfo) else copy


def _call(text: str) -> tuple[list[Any], dict[str, Any]]:
    """A JSON array is positional arguments, an object is arguments by name."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CommandError(f"The arguments are not JSON: {error}.") from error
    if isinstance(value, list):
        return value, {}
    if isinstance(value, dict):
        return [], value
    raise CommandError("The arguments are a JSON array, or a JSON object of names and values.")


VERB = Verb(
    "explain",
    "Say which lock a call of a task would take, and why.",
    "  manage.py locks explain videos.tasks.process '[123]'\n"
    "  manage.py locks explain videos.tasks.process '{\"video_id\": 123}'",
    add_arguments,
    explain_task,
)
