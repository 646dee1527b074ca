"""Command lines in messages, for their reader to run."""

from __future__ import annotations

import shlex

from .._values.describe import printable
from ..conf import DEFAULT_ALIAS

__all__ = ["command_line"]


def command_line(verb: str, *names: str, store: str = DEFAULT_ALIAS, options: str = "") -> str:
    """Return the ``manage.py locks`` command of a verb, ready for a POSIX shell.

    Each of the ``names`` is quoted as one word and never read as an option: names come from data.
    """
    words = ["manage.py", "locks", verb]
    if store != DEFAULT_ALIAS:
        # As one word: an alias may begin with "-" too.
        apart = "=" if store.startswith("-") else " "
        words.append(f"--store{apart}{shlex.quote(store)}")
    words += options.split()
    if names:
        words += ["--", *map(shlex.quote, names)]
    return printable(" ".join(words))
