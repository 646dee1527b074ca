"""``manage.py locks explain``: which lock a call of a task would take, and what it would meet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .._engine.service import locks
from .._values.describe import duration, printable
from .._values.lock_info import LockInfo
from ..exceptions import StoreUnavailable
from ..operators.explain import Explanation, duplicate_of, explain, row_of
from ..operators.held import held_permits
from ..operators.holders import command_line, sentence
from ..operators.rows import RowNow
from ..operators.work import CeleryMissing
from .tables import write_fields
from .verb import Verb

__all__ = ["VERB", "explain_task"]

SKIPPED = {"skip": "skipped", "retry": "put back, to come again later", "raise": "an error"}


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
    """Print what the call would meet, which lock it would take, and why it is that one.

    Raises `CommandError` for a task without a lock, a call that does not fit it, and tasks that
    cannot be imported.
    """
    task = options["task_name"]
    try:
        found = explain(task, *_call(options["arguments"]))
    except CeleryMissing as error:
        raise CommandError(printable(error)) from error
    except ImportError as error:
        raise CommandError(f"A module with tasks cannot be imported: {printable(error)}") from error
    except (TypeError, ValueError) as error:
        raise CommandError(f"{task} cannot be called like that: {printable(error)}") from error
    if found is None:
        raise CommandError(f"No task {printable(task)} takes a lock.")
    row, copy, unknown = row_of(found), None, None
    held: Sequence[LockInfo] = ()
    try:
        service = locks.using(found.store)
        # With slots a call takes a permit: the lock of that name itself is another one.
        holder = service.get(found.name) if found.slots == 1 else None
        held = held_permits(service, found.name) if holder is None else [holder]
        copy = duplicate_of(found)
    except StoreUnavailable as error:
        unknown = str(error)
    if options["format"] == "json":
        permits = [info for info in held if info.slot]
        single = next((info.as_json() for info in held if not info.slot), unknown)
        more = {
            "held": single,
            "permits": [info.as_json() for info in permits],
            "duplicate_of": copy.owner.task_id if isinstance(copy, LockInfo) else copy,
            "row": row._asdict() if isinstance(row, RowNow) else row,
        }
        command.stdout.write(json.dumps(found.as_json() | more, indent=2))
        return
    verdict = _verdict(found, held, copy, row) if unknown is None else f"Not known: {unknown}"
    command.stdout.write(f"{printable(verdict)}\n")
    now = {f"permit #{info.slot} now" if info.slot else "lock now": sentence(info) for info in held}
    write_fields(command, {**_fields(found), "row now": row, **now})


def _verdict(
    found: Explanation,
    held: Sequence[LockInfo],
    copy: str | LockInfo | None,
    row: RowNow | str | None,
) -> str:
    """What a call would meet now, in one sentence."""
    result = "raise AlreadyQueued" if found.on_duplicate == "raise" else "return that one's result"
    if isinstance(copy, LockInfo):
        return f"Would not be sent: the run {copy.owner.task_id} does this job. It would {result}."
    if copy is not None:
        clear = command_line("clear", found.name, store=found.store, options="--queued")
        return (
            f"Would not be sent: the message {copy} is to do this job. It would {result}. "
            f"If that message is gone: {clear}"
        )
    if len(held) < found.slots:
        if isinstance(row, RowNow) and row.refused is not None:
            return f"Would be skipped: a claim of {row.row} would fail ({row.refused})."
        return (
            f"Would run now: nobody holds {found.name}."
            if found.slots == 1
            else (f"Would run now: {len(held)} of {found.slots} permits of {found.name} are held.")
        )
    if found.on_conflict == "run":
        return f"Would run all the same, and report that {found.name} is held."
    if found.wait != 0:
        wait = "as long as it takes" if found.wait is None else f"up to {duration(found.wait)}"
        return f"Would wait {wait} for {found.name}, then be {SKIPPED[found.on_conflict]}."
    why = " by an operator" if held[0].held_by is not None else ""
    why = " for a while: it is cooling" if held[0].cooling else why
    return f"Would be {SKIPPED[found.on_conflict]}: {found.name} is held{why}."


def _fields(found: Explanation) -> dict[str, object]:
    """The options of the task that are set, by their names."""
    unique = found.unique_while and (
        f"until {'it starts' if found.unique_while == 'queued' else 'it has ended'}, waiting "
        f"{duration(found.unique_for or 0)} at most; a duplicate: {found.on_duplicate}"
    )
    most = found.debounce_max
    at_most = "" if most is None else f", {duration(most)} after the first at most"
    return {
        "task": found.task,
        "lock": found.name,
        "why": found.why,
        "arguments": ", ".join(f"{key}={value}" for key, value in found.arguments.items()),
        "store": found.store,
        "ttl": f"{duration(found.ttl)}, {'renewed' if found.renew else 'not renewed'}",
        "waits": "for ever" if found.wait is None else f"{found.wait:g}s",
        "slots": None if found.slots == 1 else found.slots,
        "on conflict": found.on_conflict,
        "guard": found.guard,
        **{name.replace("_", " "): value for name, value in found.guard_options.items()},
        "unique": unique,
        "debounce": found.debounce
        and f"the last of several calls runs, {duration(found.debounce)} after it came{at_most}",
    }


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
    "Say what a call of a task would meet now, which lock it would take, and why.",
    (
        "manage.py locks explain videos.tasks.process '[123]'",
        "manage.py locks explain videos.tasks.process '{\"video_id\": 123}'",
    ),
    add_arguments,
    explain_task,
)
