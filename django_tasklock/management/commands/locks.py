"""``manage.py locks``: see and clear locks from a shell."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ..._values.describe import printable
from ...cli.command import add_verbs
from ...cli.output import stream_of
from ...exceptions import InvalidLockConfig, TaskLockError

__all__ = ["Command"]


class Command(BaseCommand):
    """The command; its verbs are in `django_tasklock.cli`."""

    help = "See and clear the locks that tasks and other code hold."
    # In an emergency the command must run, whatever else is wrong with the site.
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        add_verbs(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        verb = options.pop("verb")
        out = stream_of(self.stdout)
        stream_of(self.stderr)
        try:
            verb(self, **options)
        except (TaskLockError, InvalidLockConfig) as error:
            raise CommandError(printable(error)) from error
        finally:
            self.stdout.flush()
        if out.fault:
            raise CommandError(f"The output could not be written: {out.fault}.")
