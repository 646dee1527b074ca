"""For the admin of a model whose rows tasks work on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext

from ..describe import duration, place, printable
from ..guarded import locks_of
from ..lease import LockInfo
from .shelf import NOT_KNOWN, problem_of

if TYPE_CHECKING:
    RowAdmin = admin.ModelAdmin[Any]
else:
    RowAdmin = object

__all__ = ["LockedRowAdminMixin"]


class LockedRowAdminMixin(RowAdmin):
    """Put before `ModelAdmin`: a row's page says who holds its lock, and does not save meanwhile.

    The locks are those under which a guarded task would work on the row. What is saved is
    checked for them last, just before it is written; the lock is not taken for it, because the
    message of a task that came in that moment would be skipped.
    """

    def render_change_form(
        self,
        request: HttpRequest,
        context: Any,
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        if obj is not None and request.method == "GET":
            try:
                for info in locks_of(obj):
                    self.message_user(request, _sentence(info), messages.WARNING)
            except NOT_KNOWN as error:
                self.message_user(request, problem_of(error), messages.ERROR)
        return super().render_change_form(request, context, add, change, form_url, obj)

    def get_form(self, *args: Any, **kwargs: Any) -> Any:
        return _below(_RefusingForm, super().get_form(*args, **kwargs))

    def get_changelist_form(self, *args: Any, **kwargs: Any) -> Any:
        return _below(_RefusingListForm, super().get_changelist_form(*args, **kwargs))


class _RefusingForm:
    instance: Model

    def clean(self) -> Any:
        cleaned: Any = super().clean()  # type: ignore[misc]
        # A new row may have its key already.
        if self.instance._state.adding or not self._is_written():
            return cleaned
        try:
            held = locks_of(self.instance)
        except NOT_KNOWN as error:
            # Whether somebody works on the row is not known: that is no reason to overwrite it.
            raise ValidationError(problem_of(error)) from error
        if held:
            raise ValidationError([_sentence(info) for info in held])
        return cleaned

    def _is_written(self) -> bool:
        return True


class _RefusingListForm(_RefusingForm):
    def _is_written(self) -> bool:
        """Of a list Django cleans every row's form, and writes those that were changed."""
        return bool(self.has_changed())  # type: ignore[attr-defined]


def _below(refusing: type[_RefusingForm], form: Any) -> Any:
    """A class of the form's that refuses to save a row while its lock is held."""
    return type(form)(form.__name__, (refusing, form), {})


def _sentence(info: LockInfo) -> str:
    left = gettext("never expires") if info.ttl is None else duration(info.ttl)
    who = {
        "name": printable(info.name),
        "owner": place(info.owner) or gettext("other code (its key was not set by a lease)"),
        "task": printable(info.owner.task or "-"),
        "ttl": left,
    }
    return (
        gettext(
            "Locked by %(owner)s, task %(task)s: lock “%(name)s”, TTL %(ttl)s. "
            "Nothing is saved here until it ends."
        )
        % who
    )
