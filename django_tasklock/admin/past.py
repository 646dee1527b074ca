"""What happened to locks, as it looks on the admin's pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy

from .._engine.service import LockService, locks
from .._values.describe import duration, place, printable
from .._values.event import Event, Kind
from .._values.owner import Owner, task_words
from ..exceptions import InvalidLockConfig, TaskLockError
from .cells import operator_words
from .moments import moment
from .store_reader import problem_of
from .task_links import task_link

__all__ = ["EVENTS_SHOWN", "EVENT_KINDS", "ask_history", "event_rows", "events_of", "owner_words"]

EVENTS_SHOWN = 20
"""events on the page of one lock"""
EVENT_KINDS: Mapping[Kind, Any] = {
    "refused": gettext_lazy("refused"),
    "skipped": gettext_lazy("skipped"),
    "waited": gettext_lazy("waited"),
    "lost": gettext_lazy("lost"),
    "cleared": gettext_lazy("cleared"),
    "taken over": gettext_lazy("taken over"),
    "given up": gettext_lazy("given up"),
    "adopted": gettext_lazy("adopted"),
    "held": gettext_lazy("held"),
}
T = TypeVar("T")


def ask_history(alias: str, question: Callable[[LockService], T]) -> tuple[T | None, str | None]:
    """Return what the store answered, or None and why there is no answer.

    A store that keeps no history is not asked.
    """
    try:
        service = locks.using(alias)
        if not service.store.keeps_history:
            words = gettext("The store “%(store)s” keeps no history.")
            return None, words % {"store": printable(alias)}
        return question(service), None
    except (TaskLockError, InvalidLockConfig) as error:
        return None, problem_of(error)


def events_of(alias: str, name: str) -> tuple[list[Event] | None, str | None]:
    """Return the last events of a lock, the newest first, or None and why they are not known."""
    return ask_history(alias, lambda service: service.history(name, limit=EVENTS_SHOWN))


def event_rows(events: list[Event]) -> list[tuple[Any, ...]]:
    """Return the cells of each event: when, what, who, task, task id, by whom, how long, why."""
    return [
        (
            moment(event.at),
            _kind(event),
            owner_words(event.owner),
            _text(event.owner.task),
            task_link(event.owner.task_id),
            _by(event),
            None if event.seconds is None else duration(event.seconds),
            _why(event),
        )
        for event in events
    ]


def owner_words(owner: Owner) -> str:
    """Return the process or the operator; for another one, that it is other code."""
    if owner.held_by is not None:
        return operator_words(owner)
    return place(owner) or gettext("other code")


def _kind(event: Event) -> str:
    kind = str(EVENT_KINDS[event.kind])
    return kind if event.count == 1 else f"{kind} \N{MULTIPLICATION SIGN} {event.count}"


def _by(event: Event) -> SafeString | str | None:
    if event.holder is None:
        return _text(event.by)
    task = task_words(event.holder)
    if task is None:
        return owner_words(event.holder)
    who = place(event.holder)
    return format_html('{} <span class="tasklock-reason">{}</span>', who, printable(task))


def _why(event: Event) -> str | None:
    """The event's reason, and that of the operator who held the lock."""
    held = None if event.holder is None else event.holder.reason
    return _text(": ".join(filter(None, (event.reason, held))))


def _text(value: str | None) -> str | None:
    return printable(value) if value else None
