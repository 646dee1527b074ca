"""``manage.py locks``: see and clear locks from a shell."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...cli.arguments import add_verbs
from ...describe import printable
from ...exceptions import InvalidLockConfig, TaskLockError

__all__ = ["Command"]


class Command(BaseCommand):
    help = "See and clear the locks that tasks and other code hold."
    # In an emergency nothing else that may be wrong with the site stands in the way.
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        add_verbs(parser)

    def handle(self, *_: Any, **options: Any) -> None:
        verb = options.pop("verb")
        try:
            verb(self, **options)
            self.stdout.flush()
        except (TaskLockError, InvalidLockConfig) as error:
            raise CommandError(printable(error)) from error
        except BrokenPipeError:
            # Whoever read our lines (head, less) has seen enough. Python would complain once
            # more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
