"""``manage.py locks``: see and clear locks from a shell."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import Any

from django.core.management.base import (
    BaseCommand,
    CommandError,
    CommandParser,
    no_translations,
)

from ..._values.words import printable
from ...cli.command import add_verbs
from ...exceptions import InvalidLockConfig, TaskLockError

__all__ = ["Command"]


class Command(BaseCommand):
    """The command; its verbs are in `django_tasklock.cli`."""

    help = "Show, clear and hold locks, find lost work, and run commands under locks."
    # In an emergency the command must run, whatever else is wrong with the site.
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        add_verbs(parser)

    @no_translations
    def handle(self, *args: Any, **options: Any) -> None:
        verb = options.pop("verb")
        # A terminal may know fewer characters than names have.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            verb(self, **options)
            self.stdout.flush()
        except (TaskLockError, InvalidLockConfig) as error:
            raise CommandError(printable(error)) from error
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)
        except OSError as error:
            # The output is full, or its reader has gone: Python would say so again at its exit.
            if getattr(self.stdout, "_out", None) is sys.stdout:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            if isinstance(error, BrokenPipeError):
                sys.exit(128 + signal.SIGPIPE)
            raise CommandError(f"The output could not be written: {error.strerror}.") from error
