"""The form by which an operator holds a lock."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from .._engine.service import locks
from .._values.durations import read_ttl
from .._values.printable import printable
from ..models import Lock
from ..operators.holders import sentence
from ..stores import stores
from ..stores.base import Refusal
from .reading import NOT_KNOWN, problem_of

# A web server ends a request that takes much longer.
LONGEST_WAIT_SECONDS = 20


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
