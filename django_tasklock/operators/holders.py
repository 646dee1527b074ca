"""Who holds a lock, and what it means to clear it: one set of words for the command and the page.

The words are translated where they are used: the page speaks the language of its request, the
command English.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from enum import Enum

from django.utils.functional import Promise
from django.utils.translation import gettext, gettext_noop, ngettext
from django.utils.translation import gettext_lazy as _

from .._values.lock_info import LockInfo
from .._values.owner import Owner, place
from .._values.words import age, duration, printable
from ..conf import DEFAULT_ALIAS
from ..stores import stores


class Holder(Enum):
    """What is known of a lock's holder. The value is the command's word, and the page's, which
    translates it."""

    ALIVE = gettext_noop("alive")
    GONE = gettext_noop("gone")
    OVERDUE = gettext_noop("overdue")
    UNKNOWN = gettext_noop("unknown")
    COOLING = gettext_noop("cooling")
    DETACHED = gettext_noop("detached")
    OPERATOR = gettext_noop("operator")
    FOREIGN = gettext_noop("other code")


_MEANINGS: Mapping[Holder, Promise] = {
    Holder.ALIVE: _("Its process is alive: two runs may overlap."),
    Holder.GONE: _("Its process is gone: no two runs overlap."),
    Holder.OVERDUE: _(
        "It was not renewed in time: its process is gone, stopped or busy, or the store did not "
        "answer it. Two runs may overlap."
    ),
    Holder.UNKNOWN: _("It is not known here whether its process is alive: two runs may overlap."),
    Holder.COOLING: _("Its work is over: no two runs overlap."),
    Holder.DETACHED: _("It is not known whether anyone works under it: two runs may overlap."),
    Holder.OPERATOR: _("The operator’s hold ends: jobs may start."),
    Holder.FOREIGN: _("It is not known whether that code still works: two runs may overlap."),
}


# A lease is extended after a third of its ttl. With less than this share left, that is late.
OVERDUE_SHARE = 0.6


def holder_of(info: LockInfo) -> Holder:
    """Return what is known of the holder, on this machine and now."""
    if info.token is None:
        return Holder.FOREIGN
    if info.held_by is not None:
        return Holder.OPERATOR
    if info.cooling:
        return Holder.COOLING
    if info.detached:
        return Holder.DETACHED
    lives = info.owner.alive()
    if lives is False:
        return Holder.GONE
    if info.renewing and (info.ttl or 0) < (info.granted or 0) * OVERDUE_SHARE:
        return Holder.OVERDUE
    return Holder.ALIVE if lives else Holder.UNKNOWN


# What `states_of` can return.
STATES = (*(holder.name.lower() for holder in Holder), "held", "waiting")


def states_of(info: LockInfo, holder: Holder) -> set[str]:
    """Return the words by which a list of locks is narrowed to such as this one: that of its
    ``holder``, and "held", "waiting" where they apply. No run works under what is not held."""
    states = {holder.name.lower()}
    states |= {"held"} if holder not in (Holder.COOLING, Holder.OPERATOR) else set()
    return states | ({"waiting"} if info.waiters else set())


def who(owner: Owner) -> str:
    """Return the process as ``host:pid``, the operator, or that it is other code."""
    if owner.held_by is not None:
        if not owner.held_by:
            return gettext("an operator")
        return gettext("operator %(name)s") % {"name": printable(owner.held_by)}
    return place(owner) or gettext("other code")


def sentence(info: LockInfo) -> str:
    """Return what holds the lock, since when and for how long, and who waits, in one sentence."""
    holder, owner = holder_of(info), info.owner
    words = gettext("Held by %(owner)s")
    if holder is Holder.COOLING:
        words = gettext("Cooling down, last held by %(owner)s")
    parts = [words % {"owner": who(owner)}]
    if owner.task:
        parts.append(gettext("task %(task)s") % {"task": printable(owner.task)})
    if info.reason:
        parts.append(gettext("reason: %(reason)s") % {"reason": printable(info.reason)})
    if info.acquired_at is not None and holder is not Holder.COOLING:
        parts.append(gettext("for %(time)s") % {"time": duration(age(info.acquired_at))})
    if holder is Holder.GONE:
        parts.append(gettext("its process is gone"))
    elif holder is Holder.OVERDUE and info.granted and info.ttl is not None:
        passed = {"time": duration(info.granted - info.ttl), "due": duration(info.granted / 3)}
        parts.append(gettext("not renewed for %(time)s (due every %(due)s)") % passed)
    elif holder is Holder.DETACHED:
        parts.append(gettext("detached (no run has adopted it yet)"))
    if info.ttl is None:
        parts.append(gettext("and never expires"))
    elif holder in (Holder.ALIVE, Holder.UNKNOWN) and info.renewing:
        parts.append(gettext("renewed"))
    else:
        parts.append(gettext("ends in %(time)s") % {"time": duration(info.ttl)})
    return "; ".join(filter(None, (", ".join(parts), _waits(info)))) + "."


def meaning(info: LockInfo) -> tuple[bool, str]:
    """Return what it means to clear the lock, as this machine knows it now: whether no two runs can
    overlap after it, and in words."""
    holder = holder_of(info)
    if holder is Holder.GONE and not stores[info.store].takeover:
        # The site says so that its work leaves subprocesses behind.
        return False, gettext(
            "Its process is gone, but its subprocesses may still work (TAKEOVER is off): two runs "
            "may overlap."
        )
    safe = holder in (Holder.GONE, Holder.COOLING, Holder.OPERATOR)
    return safe, str(_MEANINGS[holder])


def _waits(info: LockInfo) -> str:
    """How many wait, and since when; "" where nobody does, or that is not known."""
    if not info.waiters:
        return ""
    count = {"count": info.waiters}
    if info.longest_wait is None:
        return ngettext("%(count)d waits", "%(count)d wait", info.waiters) % count
    return ngettext(
        "%(count)d waits, for %(time)s", "%(count)d wait, the first for %(time)s", info.waiters
    ) % {**count, "time": duration(info.longest_wait)}


def command_line(verb: str, *names: str, store: str = DEFAULT_ALIAS, options: str = "") -> str:
    """Return the ``manage.py locks`` command of a verb, ready for a POSIX shell.

    Each of the ``names`` is quoted as one word and never read as an option: names come from data.
    """
    words = ["manage.py", "locks", verb]
    if store != DEFAULT_ALIAS:
        # As one word: an alias may begin with "-" too.
        words.append(f"--store={shlex.quote(store)}")
    words += options.split()
    if names:
        words += ["--", *map(shlex.quote, names)]
    return printable(" ".join(words))
