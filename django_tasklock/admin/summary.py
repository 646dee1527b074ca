"""The strip above the list: how many locks there are, in what states, and the last hour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.translation import gettext, ngettext

from .._engine.service import locks
from .._values.lock_info import LockInfo
from ..exceptions import InvalidLockConfig, TaskLockError
from ..operators.contention import Past, counts, past_hour
from ..operators.lock_state import callers_waiting
from .changelist import LockChangeList
from .sparkline import sparkline
from .store_reader import aliases

__all__ = ["SPARK_EVENTS", "summary_of"]

SPARK_EVENTS = 1000
"""events of each store that the strip reads at most: on Redis one round trip"""
MINUTES = 60


def summary_of(changelist: LockChangeList, request: HttpRequest, contention_url: str) -> str:
    """Return the strip as HTML.

    The number of all locks is the one that the list has asked for already. The states are those of
    the page's rows: to count them for all locks would read all of them. The last hour costs one
    more round trip for each store that keeps a history, however many locks there are.
    """
    infos = [lock.info for lock in changelist.result_list if lock.info]
    silent = bool(changelist.problems)
    total = None if silent else changelist.full_result_count
    context: dict[str, Any] = {
        "total": total,
        "silent": silent,
        "partly": total != len(infos),
        # Of what a store did not say, nothing is counted.
        "states": [(*state, None if silent else count) for *state, count in _states(infos)],
        "contention_url": contention_url,
    }
    if not silent:  # A store that has just not answered would cost another timeout.
        context |= _last_hour()
    return render_to_string("admin/django_tasklock/lock/_summary.html", context, request)


def _states(infos: Sequence[LockInfo]) -> list[tuple[str, str, int | None]]:
    """Return a class, a word and a number for each state of the locks of the page; None where that
    is not known."""
    return [
        ("waiting", gettext("waiting"), callers_waiting(infos)),
        ("gone", gettext("owner gone"), sum(_is_gone(info) for info in infos)),
        ("cooling", gettext("cooling"), sum(info.cooling for info in infos)),
        (
            "operators",
            gettext("held by operators"),
            sum(info.held_by is not None for info in infos),
        ),
    ]


def _is_gone(info: LockInfo) -> bool:
    return not info.cooling and info.held_by is None and info.owner.alive() is False


def _last_hour() -> dict[str, Any]:
    """Return the events of all stores, by the minute; nothing where no store keeps a history, or if
    one that keeps it does not answer: the number of the others would look like that of all."""
    pasts: list[Past] = []
    for alias in aliases()[0]:
        try:
            service = locks.using(alias)
            if service.store.keeps_history:
                pasts.append(past_hour(service, SPARK_EVENTS))
        except (TaskLockError, InvalidLockConfig):
            return {}
    if not pasts:
        return {}
    numbers = [sum(each) for each in zip(*(counts(past, MINUTES) for past in pasts), strict=True)]
    reaches = max((past.reaches for past in pasts if past.reaches is not None), default=None)
    until = max(past.until for past in pasts)
    count = sum(numbers)
    words = ngettext("%(count)d event", "%(count)d events", count) % {"count": count}
    return {
        "events": words,
        "reaches": None if reaches is None else timezone.localtime(reaches).strftime("%H:%M"),
        "sparkline": sparkline(numbers, until, reaches),
    }
