"""What happened to locks, as people see it: equal events are one, with a count."""

from __future__ import annotations

from datetime import datetime

from django.utils.timezone import localtime

from .._engine.history import together
from .._engine.service import LockService
from .._values.lock_info import RARE, Event
from .._values.owner import Owner
from .._values.words import duration

# So many of the newest events are looked through, and counted.
MOST_READ = 5000


def seen_events(
    service: LockService, name: str | None = None, task_id: str | None = None, limit: int = 100
) -> list[Event]:
    """Return at most ``limit`` events, the newest first, as `LockService.history` does.

    Those of the same kind, lock, task and reason are one, with a count. Rare ones, and those of one
    ``task_id``, are shown each.
    """
    if task_id is not None:
        return service.history(name, task_id, limit)
    alike: dict[object, list[Event]] = {}
    for event in service.history(name, limit=max(limit, MOST_READ)):
        key = event.kind, event.name, event.owner.task, why(event)
        alike.setdefault(object() if event.kind in RARE else key, []).append(event)
    return [together(some) if some[1:] else some[0] for some in alike.values()][:limit]


def why(event: Event) -> str:
    """Return the reason, and that of the operator who held the lock; "" for none."""
    return ": ".join(filter(None, (event.reason, (event.holder or Owner()).reason)))


def within(event: Event) -> str:
    """Return within which time the events happened that are one; "" for a single one."""
    return "" if event.since is None else duration((event.at - event.since).total_seconds())


def moment(at: datetime) -> str:
    """Return an aware moment to the second, in the site's time zone."""
    try:
        return localtime(at).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):  # At the end of the year 9999: anybody may have written it.
        return at.isoformat(timespec="seconds")
