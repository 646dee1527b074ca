"""Clearing leases that were seen: what is asked before, what is logged, and what is said after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import messages
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.messages import INFO, SUCCESS, WARNING
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .._engine.service import locks
from .._values.lock_info import LockInfo
from .._values.owner import recorded
from .._values.printable import printable
from ..models import Lock
from ..operators.held import Outcome, clear_seen
from ..operators.holders import meaning, sentence
from ..operators.logs import in_one_line
from .reading import NOT_KNOWN, problem_of

NAMES_PER_MESSAGE = 5
SAID: Mapping[Outcome, tuple[Any, int]] = {
    Outcome.CLEARED: (_("Cleared: %(names)s."), SUCCESS),
    Outcome.CHANGED_HANDS: (_("Left alone, because it changed hands: %(names)s."), WARNING),
    Outcome.NOT_LOCKED: (_("Not locked any more: %(names)s."), INFO),
}


def user_name(request: HttpRequest) -> str:
    """Return the name under which the user clears and holds locks."""
    return recorded(request.user.get_username())


def question_about(lock: Any) -> SafeString:
    """Return who holds a lock, and what it means to clear it."""
    safe, text = meaning(lock.info)
    look = "tasklock-safe" if safe else "tasklock-unsafe"
    words = '<strong>{}</strong>: {} <span class="{}">{}</span>'
    return format_html(words, printable(lock.name), sentence(lock.info), look, text)


def clear(request: HttpRequest, seen: Sequence[Lock]) -> None:
    """Clear each lease that was seen and still holds its lock, and say what became of each.

    A lock without ``info`` is none that could be cleared. The entries are written before, so that
    none is cleared without one.
    """
    names: dict[Outcome, list[str]] = {outcome: [] for outcome in Outcome}
    held: list[LockInfo] = []
    try:
        for lock in seen:
            if lock.info is None:
                gone = locks.using(lock.store).get(lock.name) is None
                names[Outcome.NOT_LOCKED if gone else Outcome.CHANGED_HANDS].append(lock.name)
            else:
                held.append(lock.info)
                words = gettext("Asked to clear it. %(sentence)s")
                log(request, lock, words % {"sentence": sentence(lock.info)})
        by = user_name(request)
        with in_one_line(len(held), ", ".join({info.store: 0 for info in held}), by):
            for info in held:
                names[clear_seen(info, by=by)].append(info.name)
    except NOT_KNOWN as error:
        messages.error(request, problem_of(error))
    for outcome, some in names.items():
        say(request, *SAID[outcome], some)


def say(request: HttpRequest, words: str, level: int, names: Sequence[str]) -> None:
    """Say what became of all that has these names: of the first ones by name; nothing for none."""
    if not names:
        return
    listed = gettext(", ").join(f"“{printable(name)}”" for name in names[:NAMES_PER_MESSAGE])
    more = len(names) - NAMES_PER_MESSAGE
    if more > 0:
        listed = gettext("%(names)s and %(count)d more") % {"names": listed, "count": more}
    messages.add_message(request, level, words % {"names": listed})


def log(request: HttpRequest, lock: Any, words: str) -> None:
    """Write into the admin's log what the user wants to end: a lease, or a reservation."""
    # Of the lock and not of the lease: so all entries of a lock are together.
    of_lock = [Lock.named(lock.store, lock.name)]
    LogEntry.objects.log_actions(request.user.pk, of_lock, DELETION, words)
