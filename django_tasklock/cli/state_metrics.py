"""``manage.py locks metrics``: the locks' state for Prometheus, printed or written to a file."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ..operators.exposition import as_text, sources
from ..operators.lock_state import lock_state
from .verb import Verb

__all__ = ["VERB", "show_metrics"]


def add_arguments(parser: CommandParser) -> None:
    """Add where to write, and what."""
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="write this file, in one step, in the place of standard output: for the textfile "
        "collector of Prometheus's node_exporter, it ends with .prom",
    )
    parser.add_argument(
        "--counters",
        action="store_true",
        help="only what the processes of this host have counted in PROMETHEUS_MULTIPROC_DIR "
        "(needs django_tasklock.contrib.prometheus in INSTALLED_APPS)",
    )
    parser.add_argument(
        "--no-rows",
        action="store_true",
        help="do not look for lost rows, which imports the tasks and asks the database",
    )


def show_metrics(command: BaseCommand, **options: Any) -> None:
    """Print the metrics in Prometheus's text format, or write them to a file.

    A store that does not answer is among them (``tasklock_store_up``), and no error. Raises
    `CommandError` if the file cannot be written, or if nothing counts.
    """
    if options["counters"]:
        text = _counted()
    else:
        aliases = None if options["store"] is None else [options["store"]]
        text = as_text(lock_state(aliases, rows=not options["no_rows"]))
    if options["output"] is None:
        command.stdout.write(text)
        return
    try:
        _replace(options["output"], text)
    except OSError as error:
        why = error.strerror or error
        raise CommandError(f"{options['output']} could not be written: {why}.") from error


def _counted() -> str:
    if not sources:
        raise CommandError(
            'Nothing counts here: add "django_tasklock.contrib.prometheus" to INSTALLED_APPS.'
        )
    try:
        return "".join(source() for source in sources.values())
    except ValueError as error:
        raise CommandError(f"What other processes have counted is not known: {error}.") from error


def _replace(path: Path, text: str) -> None:
    """Write the file in one step: whoever reads it gets the old text or the new one.

    What is no file, such as ``/dev/stdout``, is written to.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            # Others read it, such as node_exporter's user.
            os.fchmod(file.fileno(), 0o644)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


VERB = Verb(
    "metrics",
    "Print the state of the locks for Prometheus: how many, waiters, orphans, lost rows.",
    "  manage.py locks metrics\n"
    "  manage.py locks metrics --output /var/lib/node_exporter/locks.prom\n"
    "  manage.py locks metrics --counters --output /var/lib/node_exporter/lock-counters.prom",
    add_arguments,
    show_metrics,
    formats=(),
    all_stores=True,
)
