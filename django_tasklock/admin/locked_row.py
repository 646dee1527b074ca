"""For the admin of a model whose rows tasks work on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
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
    """Put before `ModelAdmin`, or an inline: a row's page says who holds its lock, and neither
    saves nor deletes the row meanwhile.

    The locks are those under which a guarded task would work on the row. What is saved or deleted
    is checked for them last, just before it is written; the lock is not taken for it, because the
    message of a task that came in that moment would be skipped. Deleting another object, which
    takes the row with it, is not refused: ``on_delete=PROTECT`` refuses that.
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

    def get_formset(self, *args: Any, **kwargs: Any) -> Any:
        """An inline's."""
        formset = super().get_formset(*args, **kwargs)  # type: ignore[misc]
        formset.form = _below(_RefusingListForm, formset.form)
        return _below(_RefusingFormSet, formset)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """What the page that asks shows. It does not delete what it calls protected."""
        deleted, counts, perms_needed, protected = super().get_deleted_objects(objs, request)
        return deleted, counts, perms_needed, [*protected, *_against(*objs)]

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        _refuse(obj)
        super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        _refuse(*queryset)
        super().delete_queryset(request, queryset)


class _RefusingForm:
    instance: Model

    def clean(self) -> Any:
        cleaned: Any = super().clean()  # type: ignore[misc]
        # A new row may have its key already.
        if self.instance._state.adding or not self._is_written():
            return cleaned
        if reasons := _against(self.instance):
            raise ValidationError(reasons)
        return cleaned

    def _is_written(self) -> bool:
        return True


class _RefusingListForm(_RefusingForm):
    def _is_written(self) -> bool:
        """Of a list Django cleans every row's form, and writes those that were changed."""
        return bool(self.has_changed())  # type: ignore[attr-defined]


class _RefusingFormSet:
    def clean(self) -> None:
        super().clean()  # type: ignore[misc]
        # Forms that are to be deleted are not cleaned.
        formset: Any = self
        marked = [form for form in formset.initial_forms if formset._should_delete_form(form)]
        if reasons := _against(*(form.instance for form in marked)):
            raise ValidationError(reasons)


def _below(refusing: type, form: Any) -> Any:
    """A class of the form's, or formset's, that refuses to write a row while its lock is held."""
    return type(form)(form.__name__, (refusing, form), {})


def _against(*rows: Model) -> list[str]:
    """Why the rows are not to be written now, a sentence each."""
    try:
        return [_sentence(info) for info in locks_of(*rows)]
    except NOT_KNOWN as error:
        # Whether somebody works on a row is not known: that is no reason to write over it.
        return [problem_of(error)]


def _refuse(*rows: Model) -> None:
    if reasons := _against(*rows):
        raise PermissionDenied(" ".join(reasons))


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
            "Nothing is saved or deleted here until it ends."
        )
        % who
    )
