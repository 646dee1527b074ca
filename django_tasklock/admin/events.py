"""What happened to locks: the page of events, and the part of a lock's page about them."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext, gettext_noop

from .._engine.service import LockService, locks
from .._values.arguments import is_name
from .._values.lock_info import Event
from .._values.owner import Owner
from .._values.words import duration, printable
from ..operators.events import moment, seen_events, why, within
from ..operators.holders import who
from .parts import lock_url, shortened, task_link
from .rows import NOT_KNOWN, problem_of

MOST_EVENTS, MOST_OF_LOCK = 100, 20  # of one page
KINDS = (
    gettext_noop("refused"), gettext_noop("skipped"), gettext_noop("waited"), gettext_noop("lost"),
    gettext_noop("cleared"), gettext_noop("taken over"), gettext_noop("given up"),
    gettext_noop("adopted"), gettext_noop("held"),
)  # fmt: skip


def history(request: HttpRequest, alias: str, query: str = "", **of: str | None) -> dict[str, Any]:
    """Return what the template of a table of events needs: of all locks, of those with a ``query``,
    which is a lock's name or a task id, or ``of`` a ``name``, or a ``task_id``.
    """
    context: dict[str, Any] = {"with_names": "name" not in of}
    try:
        service = locks.using(alias)
        if not service.store.supports_history:
            words = gettext("The store “%(store)s” keeps no history.")
            return context | {"events_problem": words % {"store": printable(alias)}}
        found = seen_events(service, **of, limit=MOST_OF_LOCK) if of else _search(service, query)
        return context | {"events": [_cells(request, event) for event in found]}
    except NOT_KNOWN as error:
        return context | {"events_problem": problem_of(error)}


def _search(service: LockService, query: str) -> list[Event]:
    found = seen_events(service, query, limit=MOST_EVENTS) if is_name(query) else []
    return found or seen_events(service, None, query or None, MOST_EVENTS)


def _cells(request: HttpRequest, event: Event) -> dict[str, str]:
    """The event as the table shows it: ``who`` is the one to whom it happened, ``by`` is who had
    the lock, or who did it."""
    holder = event.holder or Owner()
    by = printable(event.by or "") or (who(holder) if event.holder else "")
    seconds = "" if event.seconds is None else duration(event.seconds)
    times = f"\N{MULTIPLICATION SIGN} {event.count:,} / {within(event)}"
    return {
        "when": moment(event.at),
        "kind": gettext(event.kind),
        "times": times if event.count > 1 else seconds,
        "name": printable(event.name),
        "url": lock_url(request, event.store, event.name),
        "who": who(event.owner),
        "task": shortened(event.owner.task or ""),
        "task_id": task_link(event.owner.task_id),
        "by": by,
        "by_task": shortened(holder.task or ""),
        "by_task_id": task_link(holder.task_id),
        "why": printable(why(event)),
    }
