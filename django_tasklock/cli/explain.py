"""``manage.py locks explain``: which lock a call would take."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ..describe import command_line, duration, printable
from ..exceptions import StoreUnavailable
from ..explain import Explanation, duplicate_of, explain
from ..lease import LockInfo
from ..service import locks
from ..work import CeleryMissing

__all__ = ["explain_task"]


def explain_task(command: BaseCommand, **options: Any) -> None:
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
        raise CommandError(f"No task {printable(task)} takes a lock.")
    held: LockInfo | str | None
    copy: LockInfo | str | None = None
    silent = False
    try:
        held = locks.using(found.store).get(found.name)
        copy = duplicate_of(found)
    except StoreUnavailable as error:
        held, silent = str(error), True
    if options["format"] == "json":
        now = held.as_json() if isinstance(held, LockInfo) else held
        more = {"held": now, "duplicate_of": _task_id(copy)}
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
        "on conflict": found.on_conflict,
        "guard": found.guard,
        "held now": _holder(held),
    }
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
    return "by other code" if held.token is None else f"by {held.owner}"


def _unique(found: Explanation) -> str:
    until = "it starts" if found.unique_while == "queued" else "it has ended"
    return f"until {until}, waiting {duration(found.unique_for or 0)} at most"


def _duplicate(found: Explanation, copy: LockInfo | str | None) -> str:
    """Whether a call would be one now, and why."""
    if copy is None:
        return "no, a call would be sent"
    told = "raises AlreadyQueued" if found.on_duplicate == "raise" else "returns that one's result"
    if isinstance(copy, LockInfo):
        return f"yes, of the run {_task_id(copy)}, which holds the lock: a call {told}"
    command = command_line("clear", found.name, store=found.store, options="--queued")
    return (
        f"yes, the queue is reserved for the message {copy}: a call {told}. "
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
