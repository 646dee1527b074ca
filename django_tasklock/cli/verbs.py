"""What each verb of ``manage.py locks`` does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ..arguments import checked_name
from ..clearing import Outcome, clear_seen
from ..describe import printable
from ..guarded import label_of, row_if_known
from ..lease import LockInfo
from ..service import LockService, locks
from ..work import CeleryMissing
from .asking import ask
from .queued import clear_queued
from .select import chosen
from .show import COLUMNS, as_json, as_line_of_waiters, as_lines, as_sheet, cells_of, row_of

__all__ = ["clear_locks", "show_lock"]

WOULD_CLEAR = "would clear"
BY = "manage.py locks clear"
_everything: dict[str, Any] = {
    "prefix": "", "task": None, "owner": None, "expiring": None, "limit": None, "sort": "ttl",
    "scan": False,
}  # fmt: skip


def show_lock(command: BaseCommand, **options: Any) -> None:
    name = _checked(options["name"])
    service = locks.using(options["store"])
    info = service.get(name)
    if info is None:
        raise CommandError(f"{name} is not locked.")
    row, not_known = None, None
    try:
        row = _row(info)
    except CeleryMissing as error:
        not_known = str(error)
    waiting = service.waiters(name) if info.waiters else []
    if options["format"] == "json":
        more = {"row": row, "waiting": [owner.as_dict() for owner in waiting]}
        command.stdout.write(json.dumps(row_of(info) | more, indent=2))
    else:
        command.stdout.write(as_sheet(info, row or not_known))
        if waiting:
            command.stdout.write(f"\n{as_line_of_waiters(waiting)}")


def _row(info: LockInfo) -> str | None:
    """The guarded row, in a word; None where there is none, or none is known."""
    row = row_if_known(info)
    return None if row is None else label_of(row)


def clear_locks(command: BaseCommand, **options: Any) -> None:
    names, prefix, task = options["names"], options["prefix"], options["task"]
    ways = [bool(names), prefix is not None, task is not None, options["owner_gone"]]
    if sum([*ways, options["all"]]) != 1:
        raise CommandError(
            "Say which locks: NAME..., or --prefix P, or --task T, or --owner-gone, or --all."
        )
    if prefix == "":
        raise CommandError("An empty --prefix would clear every lock: say --all if that is meant.")
    service = locks.using(options["store"])
    names = list(dict.fromkeys(map(_checked, names)))
    if options["queued"]:
        clear_queued(command, service.store, names, options)
        return
    if names:
        seen = [(name, service.get(name)) for name in names]
    else:
        found = chosen(service, _everything | {"prefix": prefix or "", "task": task})
        if options["owner_gone"]:
            found = [info for info in found if info.owner.alive() is False]
        seen = [(info.name, info) for info in found]
        if seen and options["interactive"] and not options["dry_run"]:
            table = as_lines(COLUMNS, [cells_of(info) for _, info in seen if info])
            ask(command, table, "this lock" if len(seen) == 1 else f"these {len(seen)} locks")
    outcomes = [
        (name, info, _outcome(service, name, info, dry_run=options["dry_run"]))
        for name, info in seen
    ]
    _report(command, outcomes, options)
    _fail_unless_done(outcomes, named=bool(names))


def _checked(name: str) -> str:
    try:
        return checked_name(name)
    except ValueError as error:
        raise CommandError(f"{error}.") from error


def _outcome(service: LockService, name: str, info: LockInfo | None, *, dry_run: bool) -> str:
    if info is None:
        return Outcome.NOT_LOCKED.value
    if dry_run:
        return WOULD_CLEAR
    return clear_seen(service, name, info.token, info.digest, by=BY)[0].value


def _report(
    command: BaseCommand,
    outcomes: Sequence[tuple[str, LockInfo | None, str]],
    options: dict[str, Any],
) -> None:
    if options["format"] == "json":
        command.stdout.write(
            as_json(
                {"name": name, "outcome": outcome, "was": info.as_json() if info else None}
                for name, info, outcome in outcomes
            )
        )
    elif not outcomes:
        command.stdout.write("No locks.")
    else:
        for name, info, outcome in outcomes:
            if info is not None:
                held = "other code" if info.token is None else printable(info.owner)
                left_alone = " (left alone)" if outcome == Outcome.CHANGED_HANDS.value else ""
                command.stdout.write(f"{outcome} {printable(name)}, held by {held}{left_alone}")


def _fail_unless_done(outcomes: Sequence[tuple[str, LockInfo | None, str]], *, named: bool) -> None:
    """Exit 1 for a lock that was named and is not locked, and for one that is still held."""
    not_locked = [name for name, _, outcome in outcomes if outcome == Outcome.NOT_LOCKED.value]
    changed = [name for name, _, outcome in outcomes if outcome == Outcome.CHANGED_HANDS.value]
    problems = []
    if named and not_locked:
        problems.append(f"{', '.join(map(printable, not_locked))} {_is(not_locked)} not locked.")
    if changed:
        problems.append(
            f"{', '.join(map(printable, changed))} changed hands meanwhile, left alone."
        )
    if problems:
        raise CommandError(" ".join(problems))


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
