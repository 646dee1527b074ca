"""
What the command and the admin page say: one table for both.

The command prints its texts in English. The page translates its own, which are marked here for
``makemessages``. Where both say the same, there is one text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils import translation
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy, gettext_noop, ngettext_lazy

from .clearing import Outcome
from .meaning import Holder, Notice

__all__ = [
    "DEADLOCK",
    "DEADLOCK_WITHOUT_END",
    "HOLDERS",
    "KEYS_SHARED",
    "KINDS",
    "LOCK_UNKNOWN",
    "LOST_WORK",
    "LOST_WORK_HELD",
    "NOTICES",
    "NOT_ALL_RESERVATIONS",
    "NOT_ALL_WAITS",
    "NO_MESSAGE",
    "NO_TTL",
    "OUTCOMES",
    "OUTCOMES_IN_QUEUE",
    "OWNER_GONE",
    "OWNER_GONE_WITH_ROW",
    "ROW_FENCE_TOO_LARGE",
    "SELF_DEADLOCK",
    "Wording",
]


@dataclass(frozen=True, slots=True)
class Wording:
    """The texts of one problem; each has ``%(name)s`` where a value of the problem goes.

    ``message`` is the command's: it follows the name of what is wrong. ``page_message`` is the
    page's. ``hint`` says what to do; ``page_hint`` is the page's, where it is another. ``part`` is
    said of each of the value ``parts``, and ``parts`` in the other texts is all of that.
    """

    message: str
    page_message: str
    hint: str = ""
    page_hint: str = ""
    part: str = ""

    def filled(self, values: Mapping[str, Any]) -> tuple[str, str]:
        """Return the command's message and hint with the ``values`` filled in."""
        values = self._with_parts(values, str)
        return self.message % values, self.hint % values

    def page_filled(self, values: Mapping[str, Any]) -> tuple[str, str]:
        """Return the page's message and hint, in the language of the request."""
        values, hint = self._with_parts(values, translation.gettext), self.page_hint or self.hint
        return (
            translation.gettext(self.page_message) % values,
            # gettext of an empty string is the catalog's header.
            translation.gettext(hint) % values if hint else "",
        )

    def _with_parts(
        self, values: Mapping[str, Any], said: Callable[[str], str]
    ) -> Mapping[str, Any]:
        if not self.part:
            return values
        parts = [said(self.part) % each for each in values["parts"]]
        return {**values, "parts": said(BETWEEN_PARTS).join(parts)}


BETWEEN_PARTS = gettext_noop("; ")
ENDS_BY_ITSELF = gettext_noop("It ends by itself; or: %(command)s")

LOST_WORK = Wording(
    message="is %(status)r, and nobody holds its lock %(lock)s",
    page_message=gettext_noop("The row is “%(status)s”, and nobody holds its lock."),
    hint=gettext_noop("Send it again: %(command)s"),
)
LOST_WORK_HELD = Wording(
    message="is %(status)r, no run works on it, and its lock %(lock)s is held by %(owner)s",
    page_message=gettext_noop(
        "The row is “%(status)s”, no run works on it, and an operator holds its lock %(lock)s: "
        "%(who)s"
    ),
    hint=gettext_noop("After the hold, send it again: %(command)s"),
)
ROW_FENCE_TOO_LARGE = Wording(
    message="is %(status)r, nobody holds its lock %(lock)s, and no run can claim it: its fence "
    "%(fence)s is larger than any lease's now",
    page_message=gettext_noop(
        "The row is “%(status)s”, nobody holds its lock, and no run can claim it: its fence "
        "%(fence)s is larger than any lease’s now."
    ),
    hint=gettext_noop(
        "If no run of it lives, set its %(field)s to NULL, then send it again: %(command)s"
    ),
)
LOCK_UNKNOWN = Wording(
    message="%(count)d rows are %(status)r, and the names of their locks are not known",
    page_message=gettext_noop(
        "Rows that are “%(status)s” and whose locks’ names are not known: %(count)d."
    ),
    hint="Use only the guard's argument in the lock_name of %(tasks)s.",
    page_hint=gettext_noop(
        "Use only the guard’s argument in the lock_name of %(task)s, and of every task that claims "
        "these rows."
    ),
)
OWNER_GONE = Wording(
    message="is held by %(owner)s, a process that is gone",
    page_message=gettext_noop("It is held by a process that is gone."),
    hint=ENDS_BY_ITSELF,
)
OWNER_GONE_WITH_ROW = Wording(
    message="is held by %(owner)s, a process that is gone, and its row %(row)s is %(status)r",
    page_message=gettext_noop(
        "It is held by a process that is gone, and its row %(row)s is “%(status)s”."
    ),
    hint=gettext_noop(
        "It ends by itself; or: %(command)s; then, if the row is still lost: %(requeue)s"
    ),
)
NO_TTL = Wording(
    message="is held by a key that never expires",
    page_message=gettext_noop("It is held by a key that never expires."),
    hint=gettext_noop("If nobody works under it: %(command)s"),
)
NO_MESSAGE = Wording(
    message="calls of %(task)s are duplicates of %(task_id)s, of which the broker has no message",
    page_message=gettext_noop("Calls are duplicates of a message that the broker does not have."),
    hint=ENDS_BY_ITSELF,
)
NOT_ALL_RESERVATIONS = Wording(
    message="of its reservations the %(count)d that end first were looked at, and there are more",
    page_message=gettext_noop(
        "Of its reservations the %(count)d that end first were looked at, and there are more."
    ),
)
DEADLOCK = Wording(
    message="%(parts)s; the first of these leases ends in %(left)s unless renewed",
    page_message=gettext_noop(
        "%(parts)s. The first of these leases ends in %(left)s unless renewed."
    ),
    hint=gettext_noop(
        "Stop one of them, or: %(command)s. The code is to take these locks in one order, or all "
        "of them at once."
    ),
    part=gettext_noop("%(waiter)s waits for the lock %(lock)s, held by %(holder)s"),
)
SELF_DEADLOCK = Wording(
    message="%(parts)s; the lease ends in %(left)s unless renewed",
    page_message=gettext_noop("%(parts)s. The lease ends in %(left)s unless renewed."),
    hint=gettext_noop(
        "Stop it, or: %(command)s. The code is to take the lock once, or with reentrant=True."
    ),
    part=gettext_noop("%(waiter)s waits for the lock %(lock)s, which it holds itself"),
)
DEADLOCK_WITHOUT_END = Wording(
    message="%(parts)s; none of these leases ends by itself",
    page_message=gettext_noop("%(parts)s. None of these leases ends by itself."),
    hint=DEADLOCK.hint,
    part=DEADLOCK.part,
)
NOT_ALL_WAITS = Wording(
    message="deadlocks were looked for among %(waiters)d waiters of %(locks)d locks, and there are "
    "more",
    page_message=gettext_noop(
        "Deadlocks were looked for among %(waiters)d waiters of %(locks)d locks, and there are "
        "more."
    ),
)
KEYS_SHARED = Wording(
    message="its locks' keys have no prefix of their own: those without a TTL cannot be found",
    page_message=gettext_noop(
        "Its locks’ keys have no prefix of their own: those without a TTL cannot be found."
    ),
)

KINDS: Mapping[str, str | Promise] = {
    "lost work": gettext_lazy("lost work"),
    "fence": gettext_lazy("fence"),
    "unknown": gettext_lazy("unknown"),
    "deadlock": gettext_lazy("deadlock"),
    "owner gone": gettext_lazy("owner gone"),
    "no ttl": gettext_lazy("no TTL"),
    "no message": gettext_lazy("no message"),
    "settings": gettext_lazy("settings"),
    "server": gettext_lazy("server"),
}
"""The page's words for the kinds of problems; the command prints the kinds themselves."""

OUTCOMES: Mapping[Outcome, Any] = {
    Outcome.CLEARED: ngettext_lazy("%(names)s was cleared.", "%(names)s were cleared.", "count"),
    Outcome.CHANGED_HANDS: ngettext_lazy(
        "%(names)s changed hands since the page was drawn, and was left alone.",
        "%(names)s changed hands since the page was drawn, and were left alone.",
        "count",
    ),
    Outcome.NOT_LOCKED: ngettext_lazy(
        "%(names)s was not locked any more.", "%(names)s were not locked any more.", "count"
    ),
}
"""The page's sentences about locks to be cleared, for ``names`` and their ``count``; the command
prints the outcome's value."""

OUTCOMES_IN_QUEUE: Mapping[Outcome, Any] = {
    **OUTCOMES,
    Outcome.NOT_LOCKED: ngettext_lazy(
        "%(names)s was not reserved any more.", "%(names)s were not reserved any more.", "count"
    ),
}
"""The same about reservations in the queue."""

HOLDERS: Mapping[Holder, str] = {
    Holder.ALIVE: gettext_noop("Its process is alive: two runs may overlap."),
    Holder.GONE: gettext_noop("Its process is gone: no two runs overlap."),
    Holder.GONE_WITH_CHILDREN: gettext_noop(
        "Its process is gone, but its subprocesses may still work (TAKEOVER is off): two runs may "
        "overlap."
    ),
    Holder.NOT_KNOWN: gettext_noop(
        "Whether its process is alive is not known here: two runs may overlap."
    ),
    Holder.COOLING: gettext_noop("It is cooling, its work is over: no two runs overlap."),
    Holder.DETACHED: gettext_noop(
        "It is detached, and whether anyone works under it is not known: two runs may overlap."
    ),
    Holder.OPERATOR: gettext_noop("An operator holds it, so that no job runs: jobs may start."),
    Holder.OTHER_CODE: gettext_noop(
        "Whether the code that set it still works is not known: two runs may overlap."
    ),
}
"""What a clear means for the runs under the lock; the page translates it."""

NOTICES: Mapping[Notice, str] = {
    Notice.RENEWAL: gettext_noop("It notices within %(duration)s, at its next renewal."),
    Notice.END: gettext_noop(
        "It is not renewed: it notices only at its end, or at its deadline in %(duration)s."
    ),
    Notice.PERHAPS: gettext_noop("It notices within %(duration)s, at its deadline or earlier."),
    Notice.NEVER: gettext_noop("It is not told."),
    Notice.NOBODY: "",
}
"""By when the holder notices a clear; the page translates it."""
