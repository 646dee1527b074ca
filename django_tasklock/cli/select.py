"""Which locks a verb is about, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from ..describe import place
from ..lease import LockInfo
from ..ordering import in_order
from ..service import LockService

__all__ = ["chosen"]


def chosen(service: LockService, options: dict[str, Any]) -> list[LockInfo]:
    """The locks that pass all the options of ``locks list``, in the order asked for.

    Raises `ListingNotSupported`.
    """
    tests = _tests(options)
    prefix, limit, sort = options["prefix"], options["limit"], options["sort"]
    if options["scan"]:
        found = in_order(service.store.scan(prefix), "ttl")
    else:
        # Only where nothing is left out afterwards does the store know how many are enough.
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
                for text in (info.owner.host, place(info.owner), str(info.owner.pid))
                if text
            )
        )
    if expiring is not None:
        tests.append(lambda info: info.ttl is not None and info.ttl <= expiring)
    return tests
