"""A question before something is cleared."""

from __future__ import annotations

from django.core.management.base import BaseCommand, CommandError

__all__ = ["ask", "interrupted"]

INTERRUPTED = 130
"""the exit status of a command that Ctrl-C has ended, as shells have it"""


def ask(command: BaseCommand, table: str, which: str) -> None:
    """Show the ``table`` and ask whether to clear ``which``, such as "these 3 locks".

    The question goes to stderr, so that stdout has only the outcome. Raises `CommandError` for a
    no, and if nobody can answer.
    """
    command.stderr.write(f"{table}\nClear {which}? [y/N] ", _unstyled, ending="")
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


def interrupted(*, reported: bool) -> CommandError:
    """Return the error for Ctrl-C while locks were cleared: it says what is not known.

    ``reported``: whether outcomes were printed before it.
    """
    what = "which others were" if reported else "whether anything was"
    return CommandError(f"Interrupted: {what} cleared is not known.", returncode=INTERRUPTED)


def _unstyled(text: str) -> str:
    return text
