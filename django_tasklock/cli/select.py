"""Locks chosen by the options of ``locks list``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from .._engine.service import LockService
from .._values.describe import place
from .._values.lock_info import LockInfo
from .._values.ordering import first_in_order, in_order

__all__ = ["chosen", "streamed"]


def chosen(service: LockService, options: dict[str, Any]) -> list[LockInfo]:
    """Return the locks that match the ``options`` of ``locks list``, in the order of ``sort``.

    Raises `ListingNotSupported` and `StoreUnavailable`.
    """
    return list(streamed(service, options))


def streamed(service: LockService, options: dict[str, Any]) -> Iterator[LockInfo]:
    """Yield what `chosen` returns; in the order of the TTLs while the rest is read."""
    tests = _tests(options)
    prefix, limit, sort = options["prefix"], options["limit"], options["sort"]
    found: Iterable[LockInfo]
    if options["scan"]:
        found = in_order(service.store.scan(prefix), "ttl")
    elif limit is not None and not tests and sort == "ttl":
        found = service.list(prefix, limit=limit)
    elif sort == "ttl":
        found = service.store.walk(prefix)
    else:
        found = service.list(prefix)
    matching = (info for info in found if all(test(info) for test in tests))
    if sort == "ttl":
        return islice(matching, limit)
    return iter(first_in_order(matching, sort, limit))


def _tests(options: dict[str, Any]) -> list[Callable[[LockInfo], bool]]:
    task, owner, expiring = options["task"], options["owner"], options["expiring"]
    tests: list[Callable[[LockInfo], bool]] = []
    if task is not None:
        tests.append(lambda info: bool(info.owner.task) and fnmatchcase(info.owner.task, task))
    if owner is not None:
        tests.append(
            lambda info: any(
                fnmatchcase(text, owner)
                for text in (
                    info.owner.host,
                    place(info.owner),
                    info.owner.pid and str(info.owner.pid),
                    info.held_by,
                )
                if text
            )
        )
    if expiring is not None:
        tests.append(lambda info: info.ttl is not None and info.ttl <= expiring)
    return tests
