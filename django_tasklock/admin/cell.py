"""What each cell of a lock needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from django.contrib import admin
from django.utils.functional import Promise

from .._values.describe import printable
from .._values.lock_info import LockInfo
from ..models import Lock

__all__ = ["cell", "info_of", "text"]

Cell = Callable[[Any, Lock], str]
OptionalCell = Callable[[Any, Lock], "str | None"]


def info_of(lock: Lock) -> LockInfo:
    """Return what the store said of the lock."""
    assert lock.info is not None, "only what a store said is shown"
    return lock.info


def text(value: object) -> str | None:
    """Return the value as text that is safe to show; None stays None."""
    return None if value is None else printable(value)


def cell(description: str | Promise, ordering: str | None = None) -> Callable[[OptionalCell], Cell]:
    """As `admin.display`, and None becomes the admin's dash: on the page of one object, Django
    shows what a method returns, and "None" for None."""

    def decorate(method: OptionalCell) -> Cell:
        @admin.display(description=cast("str", description), ordering=ordering)
        @wraps(method)
        def shown(self: Any, lock: Lock) -> str:
            value = method(self, lock)
            return str(self.get_empty_value_display()) if value is None else value

        return shown

    return decorate
