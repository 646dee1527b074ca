"""For the admin of a model whose rows tasks work on."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext

from .._values.words import printable
from ..operators.holders import sentence
from ..operators.rows import locks_of
from .reading import NOT_KNOWN, problem_of

# What comes behind a mixin, which no type can say.
Base: Any = object


class LockedRowAdminMixin(Base):  # type: ignore[misc]
    """A mixin for a `ModelAdmin`, or an inline, before the base class.

    The page of a row says who holds its lock, and does not save or delete the row meanwhile.

    The locks are those under which a guarded task would work on the row. What is saved or deleted
    is checked just before it is written. The lock is not taken for it: a task that arrived in that
    moment would be skipped. Deleting another object, which takes the row with it, is not refused:
    ``on_delete=PROTECT`` refuses that.
    """

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        if request.method == "GET" and (row := context.get("original")):
            for reason in _against(row):
                messages.warning(request, reason)
        answer: HttpResponse = super().render_change_form(request, context, *args, **kwargs)
        return answer

    def get_form(self, *args: Any, **kwargs: Any) -> Any:
        return _refusing(super().get_form(*args, **kwargs))

    def get_changelist_formset(self, *args: Any, **kwargs: Any) -> Any:
        return _refusing(super().get_changelist_formset(*args, **kwargs))

    def get_formset(self, *args: Any, **kwargs: Any) -> Any:
        """An inline's."""
        return _refusing(super().get_formset(*args, **kwargs))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Add locked rows to what is protected. Django asks for the confirmation page, and again
        just before it deletes."""
        deleted, counts, perms_needed, protected = super().get_deleted_objects(objs, request)
        return deleted, counts, perms_needed, [*protected, *_against(*objs)]


class _Refusing(Base):  # type: ignore[misc]
    """A form, or a set of forms: that asks for all rows at once. In an outage each question might
    take as long as a time-out."""

    def clean(self) -> Any:
        cleaned = super().clean()
        # One that is marked for deletion need not count as changed: for a user who may delete and
        # not change, Django says that none has.
        written = [
            form.instance
            for form in getattr(self, "initial_forms", [self])
            if form is self or form.has_changed() or self._should_delete_form(form)
        ]
        if reasons := _against(*written):
            raise ValidationError(reasons)
        return cleaned


def _refusing(form: Any) -> Any:
    """Return a subclass of a form, or of a set, that writes no row while its lock is held."""
    made = type(form)(form.__name__, (_Refusing, form), {})
    if hasattr(form, "base_fields"):
        # A base admin's `get_form` may have changed them; Django has just made them anew.
        made.base_fields = form.base_fields
    return made


def _against(*rows: Model) -> list[str]:
    """Return why the rows must not be written now, one sentence for each lock."""
    words = gettext("Lock “%(name)s”: %(sentence)s Nothing is saved or deleted here until it ends.")
    try:
        # A new row may have its key already, and no task works on it.
        held = locks_of(*(row for row in rows if not row._state.adding))
    except NOT_KNOWN as error:
        # Not known is not free.
        unknown = gettext("Nothing is saved or deleted: a task may be working on the row.")
        return [f"{unknown} {problem_of(error)}"]
    return [words % {"name": printable(info.name), "sentence": sentence(info)} for info in held]
