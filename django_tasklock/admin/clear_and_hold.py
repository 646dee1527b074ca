"""Clearing leases that were seen: what is asked, logged and said; and the form for a hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
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
from .._values.words import printable, read_ttl
from ..models import Lock
from ..operators.held import Outcome, clear_seen
from ..operators.holders import meaning, sentence
from ..stores import stores
from ..stores.base import Refusal
from .reading import NOT_KNOWN, problem_of

NAMES_PER_MESSAGE = 5
# A web server ends a request that takes much longer.
LONGEST_WAIT_SECONDS = 20
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


class HoldForm(forms.ModelForm):  # type: ignore[type-arg]
    """Which lock to hold, for how long, and why. A valid form holds it: whether somebody else does
    is known when the lock is taken, and not before. ``by``: the user's name."""

    by = ""

    store = forms.ChoiceField(label=_("Store"))
    name = forms.CharField(label=_("Name"))
    duration = forms.CharField(
        label=_("Duration"),
        initial="2h",
        help_text=_("30s, 10m, 2h, 1d, 1h30m, or a number of seconds."),
    )
    reason = forms.CharField(
        label=_("Reason"), required=False, help_text=_("For those who find the lock held.")
    )
    wait = forms.BooleanField(
        label=_("Wait for the lock"),
        required=False,
        help_text=_("At most 20 seconds, in the lock’s wait queue."),
    )

    class Meta:
        model = Lock
        fields = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choice: Any = self.fields["store"]
        choice.choices = [(alias, printable(alias)) for alias in stores]
        if len(choice.choices) == 1:
            choice.widget, choice.required = forms.HiddenInput(), False

    def clean(self) -> Any:
        """Hold the lock; say on the form who holds it, or what is wrong."""
        if self.errors:
            return self.cleaned_data
        said = self.cleaned_data
        said["store"] = said["store"] or next(iter(stores))
        wait = LONGEST_WAIT_SECONDS if said["wait"] else 0
        try:
            ttl, service = read_ttl(said["duration"]), locks.using(said["store"])
            answer = service.try_hold(said["name"], ttl, self.by, said["reason"], wait=wait)
        except (*NOT_KNOWN, ValueError) as error:
            raise forms.ValidationError(problem_of(error)) from error
        if isinstance(answer, Refusal):
            self.add_error("name", sentence(answer.holder))
        else:
            self.instance = Lock.named(said["store"], said["name"])
        return said
