"""``manage.py locks explain``: which lock a call would take."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ..describe import duration, printable
from ..exceptions import StoreUnavailable
from ..explain import explain
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
    try:
        held = locks.using(found.store).get(found.name)
    except StoreUnavailable as error:
        held = str(error)
    if options["format"] == "json":
        now = held.as_json() if isinstance(held, LockInfo) else held
        command.stdout.write(json.dumps(found.as_json() | {"held": now}, indent=2))
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
    width = max(map(len, lines)) + 2
    for label, value in lines.items():
        command.stdout.write(f"{label + ':':<{width}}{printable(value or '-')}")


def _holder(held: LockInfo | str | None) -> str:
    if held is None:
        return "no"
    if isinstance(held, str):
        return held
    return "by other code" if held.token is None else f"by {held.owner}"


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
