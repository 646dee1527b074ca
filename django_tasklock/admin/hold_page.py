"""The page "Hold": an operator takes a lock, so that no job takes it."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.admin.widgets import AdminTextInputWidget
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext, gettext_lazy

from .._engine.service import locks
from .._values.arguments import (
    LONGEST_NAME_CHARACTERS,
    LONGEST_TEXT_BYTES,
    is_name,
    is_remark,
)
from .._values.describe import duration, place, printable
from .._values.lock_info import LockInfo
from .._values.owner_record import recorded
from .._values.read_duration import read_ttl
from ..conf import DEFAULT_ALIAS
from ..models import Lock
from ..stores.base import Refusal
from .cells import operator_words
from .page import Page, error_on_list
from .store_reader import aliases

__all__ = ["HoldPage"]


class HoldForm(forms.Form):
    """Which lock to hold, for how long, and why."""

    required_css_class = "required"

    store = forms.ChoiceField(label=gettext_lazy("store"))
    name = forms.CharField(
        label=gettext_lazy("name"),
        max_length=LONGEST_NAME_CHARACTERS,
        strip=True,
        widget=AdminTextInputWidget,
    )
    ttl = forms.CharField(
        label=gettext_lazy("duration"),
        initial="2h",
        help_text=gettext_lazy("30s, 10m, 2h, 1d, 1h30m, or a number of seconds."),
        widget=AdminTextInputWidget,
    )
    reason = forms.CharField(
        label=gettext_lazy("reason"),
        required=False,
        max_length=LONGEST_TEXT_BYTES,
        help_text=gettext_lazy("For those who find the lock held."),
        widget=AdminTextInputWidget,
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.label = capfirst(field.label)
        known = aliases()[0] or [DEFAULT_ALIAS]
        store: Any = self.fields["store"]
        store.choices = [(alias, printable(alias)) for alias in known]
        store.initial = DEFAULT_ALIAS
        if len(known) == 1:
            del self.fields["store"]
            self.only_store = known[0]

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        if not is_name(name):
            raise forms.ValidationError(gettext("A name has printable characters and no spaces."))
        return name

    def clean_ttl(self) -> float:
        try:
            return read_ttl(self.cleaned_data["ttl"])
        except ValueError:
            raise forms.ValidationError(gettext("That is not a duration of a lock.")) from None

    def clean_reason(self) -> str:
        reason: str = self.cleaned_data["reason"]
        if not is_remark(reason):
            raise forms.ValidationError(
                gettext("A reason has at most 255 bytes of UTF-8, of printable characters.")
            )
        return reason

    @property
    def alias(self) -> str:
        """The store's alias, of a form that is valid."""
        return str(self.cleaned_data["store"]) if "store" in self.fields else self.only_store


class HoldPage(Page):
    """The form, and the POST that holds the lock. It needs the permission to delete locks: who may
    end a lock may hold one."""

    def urls(self) -> list[URLPattern]:
        """Return the URL of the form and of its POST."""
        # The log entry must stay, whatever fails later.
        return [self.path("hold/", self.hold_view, "hold", atomic=False)]

    @error_on_list
    def hold_view(self, request: HttpRequest) -> HttpResponse:
        """Return the form, for the lock that ``name`` in the query says; hold the lock by POST.

        Raises `PermissionDenied`.
        """
        self.require_delete(request)
        if request.method == "POST":
            form = HoldForm(request.POST)
            if form.is_valid():
                info = self._hold(request, form)
                if info is not None:
                    return self.redirect(request)
        else:
            form = HoldForm(initial={"name": request.GET.get("name", "")})
        context = {"form": form, "hold_url": self.url_of(request, "hold")}
        return self.rendered(request, "hold.html", gettext("Hold a lock"), context)

    def _hold(self, request: HttpRequest, form: HoldForm) -> LockInfo | None:
        """Hold the lock; None, and an error on the form, if somebody else holds it.

        The log entry is written before, as `ClearLog` does it: no lock is held without a trace. If
        it still says "Asked to hold it", the process died in between.
        """
        name, ttl, reason = (form.cleaned_data[field] for field in ("name", "ttl", "reason"))
        words = {"duration": duration(ttl), "store": form.alias, "reason": reason or "-"}
        (entry,) = LogEntry.objects.log_actions(
            request.user.pk,
            [Lock.named(form.alias, name)],
            ADDITION,
            gettext(
                "Asked to hold it for %(duration)s in the store “%(store)s”; no answer yet. "
                "Reason: %(reason)s"
            )
            % words,
        )
        held = None
        try:
            held = _try_hold(form, name, ttl, recorded(request.user.get_username()), reason)
        finally:
            if held is None:
                entry.delete()
        if held is None:
            return None
        entry.change_message = (
            gettext("Held for %(duration)s in the store “%(store)s”. Reason: %(reason)s") % words
        )
        entry.save(update_fields=["change_message"])
        self.model_admin.message_user(
            request,
            gettext("“%(name)s” is held for %(duration)s: jobs that need it are skipped or wait.")
            % {"name": name, "duration": duration(ttl)},
            messages.SUCCESS,
        )
        return held


def _try_hold(form: HoldForm, name: str, ttl: float, by: str, reason: str) -> LockInfo | None:
    try:
        held = locks.using(form.alias).try_hold(name, ttl, by, reason)
    except ValueError as error:  # A store may have limits of its own.
        form.add_error(None, str(error))
        return None
    if isinstance(held, Refusal):
        sentence = gettext("It is held by %(owner)s.") % {"owner": _holder(held.holder)}
        form.add_error("name", sentence)
        return None
    return held


def _holder(info: LockInfo) -> str:
    if info.held_by is not None:
        return operator_words(info.owner)
    holder = place(info.owner) or gettext("other code (its key was not set by a lease)")
    return f"{holder} ({gettext('cooling')})" if info.cooling else holder
