"""Locks chosen by the options of ``locks list``."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from .._engine.service import LockService
from .._values.describe import place
from .._values.lock_info import LockInfo
from ..operators.ordering import in_order

__all__ = ["chosen"]


def chosen(service: LockService, options: dict[str, Any]) -> list[LockInfo]:
    """Return the locks that match the ``options`` of ``locks list``, in the order of ``sort``.

    Raises `ListingNotSupported` and `StoreUnavailable`.
    """
    tests = _tests(options)
    prefix, limit, sort = options["prefix"], options["limit"], options["sort"]
    if options["scan"]:
        found = in_order(service.store.scan(prefix), "ttl")
    else:
        # The store can apply the limit only if no lock is left out afterwards.
        enough = limit if not tests and sort == "ttl" else None
        found = service.list(prefix, limit=enough)
    found = [info for info in found if all(test(info) for test in tests)]
    if sort != "ttl":
        found = in_order(found, sort)
    return found[:limit]


def _tests(options: dict[str, Any]) -> list[Callable[[LockInfo], bool]]:
    task, owner, expiring = options["task"], options["owner"], options["expiring"]
    tests: list[Callable[[LockInfo], bool]] = []
    if task is not None:
        tests.append(lambda info: fnmatchcase(info.owner.task or "", task))
    if owner is not None:
        tests.append(
            lambda info: any(
                fnmatchcase(text, owner)
                for text in (
                    info.owner.host,
                    place(info.owner),
                    str(info.owner.pid),
                    info.held_by,
                )
                if text
            )
        )
    if expiring is not None:
        tests.append(lambda info: info.ttl is not None and info.ttl <= expiring)
    return tests
