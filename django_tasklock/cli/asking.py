"""A question before something is cleared."""

from __future__ import annotations

from django.core.management.base import BaseCommand, CommandError

__all__ = ["ask"]


def ask(command: BaseCommand, table: str, which: str) -> None:
    """Ask on stderr, so that stdout has the outcome alone. Raises `CommandError` for a no."""
    command.stderr.write(f"{table}\nClear {which}? [y/N] ", _as_it_is, ending="")
    command.stderr.flush()
    try:
        answer = input()
    except EOFError:
        raise CommandError(
            "Nothing was cleared: nobody was there to answer. Say --noinput to go without."
        ) from None
    if answer.strip().casefold() not in ("y", "yes"):
        raise CommandError("Nothing was cleared.")


def _as_it_is(text: str) -> str:
    return text
