"""``manage.py locks clear`` and ``hold``: a lock removed by force, or kept from jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .._engine.service import LockService, locks
from .._values.lock_info import LockInfo
from .._values.words import printable
from ..operators.held import Outcome, QueuedJob, clear_job, clear_seen, queued_jobs
from ..operators.holders import Holder, holder_of, meaning, sentence, who
from ..stores.base import Refusal
from .arguments import add_format, add_wait, lock_name, lock_ttl, user
from .run_command import HELD_ELSEWHERE
from .show import matching
from .tables import as_json, json_row

Seen: TypeAlias = LockInfo | QueuedJob
MOST_NAMED = 20  # Of more the command names the first ones, or none, and counts.


def add_clear_arguments(parser: CommandParser) -> None:
    """Add which locks to clear, and how."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("names", nargs="*", type=lock_name, default=[], metavar="NAME")
    which.add_argument("--prefix", type=lock_name, metavar="P", help="locks that begin with P")
    which.add_argument("--task", help="locks of this task (* and ? are wildcards)")
    which.add_argument("--owner-gone", action="store_true", help="locks of dead local processes")
    which.add_argument("--all", action="store_true", help="every lock that `locks list` shows")
    parser.add_argument("--queued", action="store_true", help="unique_while reservations, no locks")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be cleared")
    no_input: Any = {"action": "store_false", "dest": "interactive", "help": "do not ask"}
    parser.add_argument("--noinput", "--no-input", **no_input)
    add_format(parser)


def clear_locks(command: BaseCommand, **options: Any) -> None:
    """
    Remove locks by force.

    It says what each clear means, and asks before it clears. The next waiter may
    take the lock at once, even while its holder still works. Exits 1 if a named
    lock is not locked, if a lock changed hands meanwhile, or if the answer was no.

    examples:
      manage.py locks clear video:123 video:124
      manage.py locks clear --prefix video: --dry-run
      manage.py locks clear --owner-gone --noinput
      manage.py locks clear --queued --task videos.tasks.process
    """
    # Not required by argparse: `call_command` with keyword arguments could not say which.
    if not any(options[way] for way in ("names", "prefix", "task", "owner_gone", "all")):
        raise CommandError("Say which: NAME..., --prefix P, --task T, --owner-gone or --all.")
    if options["queued"] and options["owner_gone"]:
        raise CommandError("--owner-gone does not apply to reservations: no process holds them.")
    service, by = locks.using(options["store"]), f"{user()} (locks clear)"
    queued, is_dry = options["queued"], options["dry_run"]
    found: Sequence[Seen] = _jobs(service, options) if queued else _locks(service, options)
    clear: Any = clear_job if queued else clear_seen
    what = "reservation" if queued else "lock"
    if found and (options["interactive"] or is_dry):
        # To stderr: stdout has the outcome only.
        command.stderr.write(_meanings(found), str)
        if not is_dry:
            _ask(command, f"this {what}" if len(found) == 1 else f"these {len(found):,} {what}s")
    outcomes = ((each, "would clear" if is_dry else clear(each, by=by).value) for each in found)
    done: list[tuple[Seen, str]] = []
    try:
        done += outcomes
    finally:  # What was cleared is said also if the rest was interrupted, or failed.
        if done:
            _write(command, done, options["format"])
    absent = ", ".join(sorted({*options["names"]} - {each.name for each in found}))
    if absent:
        raise CommandError(f"{absent}: not {'reserved' if options['queued'] else 'locked'}.")
    if not done:
        command.stdout.write("Nothing to clear." if options["format"] == "table" else "[]")
    left = [each.name for each, outcome in done if outcome == Outcome.CHANGED_HANDS.value]
    if left:
        raise CommandError(printable(f"Changed hands meanwhile, so left alone: {', '.join(left)}."))


def _locks(service: LockService, options: dict[str, Any]) -> Sequence[LockInfo]:
    if options["names"]:
        known = service.store.find_many(list(dict.fromkeys(options["names"])))
        return [info for info in known if info is not None]
    found = matching(service, options["prefix"], options["task"])
    return [info for info in found if not options["owner_gone"] or holder_of(info) is Holder.GONE]


def _jobs(service: LockService, options: dict[str, Any]) -> Sequence[QueuedJob]:
    jobs = queued_jobs(service.store, options["prefix"] or "", options["task"])
    return [job for job in jobs if job.name in (options["names"] or [job.name])]


def _meanings(found: Sequence[Seen]) -> str:
    """What it means to clear each of them, the unsafe ones first."""
    means = sorted(map(_meaning, found))
    more = [f"and {len(means) - MOST_NAMED:,} more."] if len(means) > MOST_NAMED else []
    return "\n".join([text for _, text in means[:MOST_NAMED]] + more)


def _meaning(each: Seen) -> tuple[bool, str]:
    """Whether no two runs can overlap after its clear; and what it is, and what the clear means."""
    name = printable(each.name)
    if isinstance(each, QueuedJob):
        text = "After the clear the next call is sent, even if this message still waits."
        return True, f"{name}: {_was(each)}.\n    {text}"
    safe, text = meaning(each)
    return safe, f"{name}: {sentence(each)}\n    {text}"


def _ask(command: BaseCommand, which: str) -> None:
    command.stderr.write(f"\nClear {which}? [y/N] ", str, ending="")
    command.stderr.flush()
    try:
        answer = input()
    except (EOFError, RuntimeError):  # The second where stdin is closed.
        raise CommandError("Nothing was cleared: there is nobody to ask. Use --noinput.") from None
    if answer.strip().casefold() not in ("y", "yes"):
        raise CommandError("Nothing was cleared.")


def _write(command: BaseCommand, done: Sequence[tuple[Seen, str]], form: str) -> None:
    words = [outcome for _, outcome in done]
    if form == "json":
        rows = ({"name": each.name, "outcome": word, "was": each.as_json()} for each, word in done)
        command.stdout.write(as_json(rows))
    elif len(done) > MOST_NAMED:
        for word in dict.fromkeys(words):
            command.stdout.write(f"{word} {words.count(word):,}")
    else:
        for each, word in done:
            command.stdout.write(printable(f"{word} {each.name}, {_was(each)}"))


def _was(each: Seen) -> str:
    if isinstance(each, QueuedJob):
        return f"reserved for task {printable(each.task)}[{printable(each.task_id)}]"
    return f"held by {who(each.owner) if each.token is None else each.owner}"


def add_hold_arguments(parser: CommandParser) -> None:
    """Add the lock, for how long, who holds it, and why."""
    parser.add_argument("name", type=lock_name, metavar="NAME")
    long: Any = {"dest": "ttl", "type": lock_ttl, "required": True, "metavar": "DURATION"}
    parser.add_argument("--for", help="30s, 10m, 2h, 1d, 1h30m, or a number of seconds", **long)
    parser.add_argument("--reason", default="", help="why, for those who find the lock held")
    parser.add_argument("--by", metavar="NAME", help="the operator (default: this shell's user)")
    add_wait(parser)
    add_format(parser)


def hold_lock(command: BaseCommand, **options: Any) -> None:
    """
    Hold a lock as an operator: no job that needs it starts until the hold ends.

    With slots=N, hold the name itself: no job gets a permit then. The messages of
    tasks wait; other callers are refused, or wait, as for any other holder.
    `locks clear` ends the hold earlier. Nobody loses a lock by a hold: it exits 75
    if somebody else holds the lock.

    examples:
      manage.py locks hold nightly-report --for 2h --reason 'database migration'
      manage.py locks hold video:123 --for 30m --wait 600
      manage.py locks hold tenant:7 --for 2h --reason 'over its quota'
    """
    service, name = locks.using(options["store"]), options["name"]
    by = user() if options["by"] is None else options["by"]
    try:
        held = service.try_hold(name, options["ttl"], by, options["reason"], wait=options["wait"])
    except ValueError as error:
        raise CommandError(f"{error}.") from error
    if isinstance(held, Refusal):
        raise CommandError(f"{name}: {sentence(held.holder)}", returncode=HELD_ELSEWHERE)
    said = json.dumps(json_row(held)) if options["format"] == "json" else None
    command.stdout.write(said or f"{name}: {sentence(held)}")
