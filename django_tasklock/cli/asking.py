"""What all clears have in common: the question before them, and the report after them."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from .._values.describe import printable
from .._values.lock_info import LockInfo
from ..operators.clearing import Outcome
from ..operators.reservations import QueuedJob
from .tables import as_json

__all__ = ["DRY_RUN", "Report", "ask"]

INTERRUPTED = 130  # the exit status of a command that Ctrl-C has ended, as shells have it
DRY_RUN = "would clear"
MOST_NAMED = 20  # if more are cleared, the table has their number only


def ask(command: BaseCommand, table: str, what: str, count: int, *, only_show: bool) -> None:
    """Show the ``table``, and ask whether to clear the ``count`` locks or reservations in it.

    It goes to stderr, so that stdout has only the outcome. Raises `CommandError` for a no, and if
    nobody can answer. ``only_show``: do not ask.
    """
    command.stderr.write(table, str)
    if only_show:
        return
    which = f"this {what}" if count == 1 else f"these {count:,} {what}s"
    command.stderr.write(f"\nClear {which}? [y/N] ", str, ending="")
    command.stderr.flush()
    try:
        answer = input()
    except (EOFError, RuntimeError):  # The second where stdin is closed.
        raise CommandError(
            "Nothing was cleared: there is nobody to ask. Use --noinput to clear without asking."
        ) from None
    except KeyboardInterrupt:
        raise CommandError("Nothing was cleared.", returncode=INTERRUPTED) from None
    if answer.strip().casefold() not in ("y", "yes"):
        raise CommandError("Nothing was cleared.")


class Report:
    """The outcomes of clears, as a block: printed at its end, also if it is interrupted."""

    def __init__(
        self,
        command: BaseCommand,
        form: str,
        words: Callable[[Any], str],
        *,
        nothing: str,
        not_there: str,
    ) -> None:
        self._command = command
        self._form = form
        self._words = words
        self._nothing = nothing
        self._not_there = not_there
        self._outcomes: list[tuple[str, str, LockInfo | QueuedJob | None]] = []

    def add(self, name: str, outcome: str, was: LockInfo | QueuedJob | None) -> None:
        """Note what became of one lock or reservation, and what it ``was``."""
        self._outcomes.append((name, outcome, was))

    def __enter__(self) -> Report:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None or self._outcomes:
            self._write()
        if kind is KeyboardInterrupt:
            what = "which others were" if self._outcomes else "whether anything was"
            text = f"Interrupted: {what} cleared is not known."
            raise CommandError(text, returncode=INTERRUPTED) from None

    def fail_unless_done(self, *, named: bool) -> None:
        """Raise `CommandError` for a lock that was named and is not there, and for one that is
        still held."""
        said = []
        for outcome, words, all_of in (
            (Outcome.NOT_LOCKED, f"{self._not_there}.", named),
            (Outcome.CHANGED_HANDS, "left alone: it changed hands meanwhile.", True),
        ):
            names = [name for name, done, _ in self._outcomes if done == outcome.value]
            if names and all_of:
                said.append(f"{', '.join(map(printable, names[:MOST_NAMED]))}: {words}")
        if said:
            raise CommandError(" ".join(said))

    def _write(self) -> None:
        if self._form == "json":
            rows = (
                {
                    "name": name,
                    "outcome": self._word(outcome),
                    "was": None if was is None else was.as_json(),
                }
                for name, outcome, was in self._outcomes
            )
            self._command.stdout.write(as_json(rows))
        elif not self._outcomes:
            self._command.stdout.write(self._nothing)
        elif len(self._outcomes) > MOST_NAMED:
            done = [outcome for _, outcome, _ in self._outcomes]
            for outcome in dict.fromkeys(done):
                self._command.stdout.write(f"{self._word(outcome)} {done.count(outcome):,}")
        else:
            for name, outcome, was in self._outcomes:
                if was is not None:
                    words = f"{self._word(outcome)} {name}, {self._words(was)}"
                    self._command.stdout.write(printable(words))

    def _word(self, outcome: str) -> str:
        return self._not_there if outcome == Outcome.NOT_LOCKED.value else outcome
