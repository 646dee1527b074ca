"""Where each process of a soak writes what happens: the history of `tests.nightly.chaos`."""

from __future__ import annotations

import itertools
import logging
import os
import random
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.nightly.chaos.history import History, now

__all__ = ["Heard", "book", "look_after", "new_call", "rested_file", "version"]

LOOK_SECONDS = (0.05, 0.2)
"""between two looks at a lease"""
MOST_TEXT = 3000
"""characters of an error that are kept"""
_numbers = itertools.count(1)


def book() -> History:
    """That of this process, also after a fork."""
    return _book(os.getpid())


@cache
def _book(pid: int) -> History:
    return History(Path(os.environ["SOAK_FOLDER"]), f"{os.environ['SOAK_NAME']}.{pid}")


def new_call() -> str:
    """A name for a call that asks for a lock."""
    return f"{book().process}/{next(_numbers)}"


@cache
def version() -> str:
    """Which version of the package this process runs: "this" tree, or the "newer" one."""
    import django_tasklock

    root = Path(__file__).resolve().parents[3]
    return "this" if Path(django_tasklock.__file__).is_relative_to(root) else "newer"


def rested_file(name: str) -> Path:
    """It is there when a plain process of this name has given back all that it held."""
    return Path(os.environ["SOAK_FOLDER"], f"{name}.rested")


def look_after(call: str, end: Callable[[], float | None], seconds: float) -> bool:
    """Be busy under a lease, and write down how long it is held. False: it is lost.

    ``end`` says when the lease will be over; None: it is over.
    """
    over = now() + seconds
    while True:
        asked = now()
        until = end()
        if until is None:
            book().write("lost", call)
            return False
        book().write("held", call, at=asked, end=until)
        left = over - now()
        if left <= 0:
            return True
        time.sleep(min(left, random.uniform(*LOOK_SECONDS)))


class Heard(logging.Handler):
    """Writes errors into the history."""

    def __init__(self, level: int = logging.ERROR) -> None:
        super().__init__(level)

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if len(text) > MOST_TEXT:
            text = text[: MOST_TEXT // 2] + " [...] " + text[-MOST_TEXT // 2 :]
        book().write("error", name="", logger=record.name, text=text)
