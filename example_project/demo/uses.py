"""Shows the examples of `example_project.uses`, after the videos or alone."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from django.conf import settings
from django.core.management import call_command

from django_tasklock import locks
from example_project.demo.screen import Screen
from example_project.uses import USES
from example_project.uses.crew import Shown, crew_of

PROCESSES = 4


def show_uses(screen: Screen, state: Path, uses: Sequence[str] = USES) -> list[Shown]:
    """Run these examples, one after the other, and say what they came to.

    Raises:
        NotReady: a process of an example did not come up.
    """
    for database in settings.DATABASES:
        call_command("migrate", database=database, verbosity=0)
    everything = []
    with crew_of(PROCESSES, state / "logs") as crew:
        screen.say(f"more examples, with {PROCESSES} processes (example_project/uses/):")
        for use in uses:
            shown: Shown = importlib.import_module(f"example_project.uses.{use}").show(crew)
            shown.problems += [f"lock {info.name} is left" for info in locks.list()]
            screen.say(f"  {shown.title + ':':<16} {shown.found}")
            everything.append(shown)
    return everything
