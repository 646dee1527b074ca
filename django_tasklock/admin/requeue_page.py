"""Sending the tasks of lost rows again, from the page "Health"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_permission_codename
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import Error as DatabaseError
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.urls import URLPattern
from django.utils.translation import gettext, ngettext

from .._values.describe import printable
from ..operators.doctor import Problem, requeue
from ..operators.sending_again import SeenRow, still_lost
from .outcomes import listed
from .page import Page
from .seen import from_json, to_json
from .store_reader import NOT_KNOWN, problem_of

__all__ = ["RequeuePage", "encode_rows"]

NOT_SHOWN_HERE = "That is not a lost row that a page of this admin has shown."
MOST_ROWS = 100
"""rows of one POST: the page shows no more at once"""


def encode_rows(problems: Sequence[Problem]) -> str:
    """Return lost rows as the text of one form field."""
    return to_json([SeenRow.of(problem) for problem in problems])


class RequeuePage(Page):
    """The view that sends. It needs the permissions to delete locks and to change the rows."""

    def urls(self) -> list[URLPattern]:
        """Return the URL of the POST."""
        # The log entries of what was sent must stay when the rest fails.
        return [self.path("health/requeue/", self.requeue_view, "requeue", atomic=False)]

    def may_send(self, request: HttpRequest, model: type[Model] | None) -> bool:
        """Whether the user may have the tasks of this model's rows sent again."""
        if model is None or not self.model_admin.has_delete_permission(request):
            return False
        site = self.model_admin.admin_site
        if site.is_registered(model):
            return site.get_model_admin(model).has_change_permission(request)
        codename = get_permission_codename("change", model._meta)
        user: Any = request.user
        return bool(user.has_perm(f"{model._meta.app_label}.{codename}"))

    def requeue_view(self, request: HttpRequest) -> HttpResponse:
        """Send the task of each row that was shown, if it is still lost as it was shown.

        Raises `PermissionDenied`, and `BadRequest` for what the page did not show.
        """
        self.require_delete(request)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        seen = _seen(request.POST.get("rows", ""))
        try:
            lost = still_lost(seen)
            if not all(self.may_send(request, problem.model) for problem in lost.values()):
                raise PermissionDenied
            self._send(request, list(lost.values()))
        except NOT_KNOWN as error:
            self.model_admin.message_user(request, problem_of(error), messages.ERROR)
        except DatabaseError as error:  # That of the rows.
            self.model_admin.message_user(request, printable(error), messages.ERROR)
        else:
            over = [f"{each.task} {each.pk}" for each in seen if each not in lost]
            self._say(request, "over", over)
        return self.redirect(request, "health")

    def _send(self, request: HttpRequest, lost: Sequence[Problem]) -> None:
        """Send the tasks; after one that the broker or the store did not take, no other."""
        sent: list[str] = []
        before: list[str] = []
        try:
            for problem in lost:
                entry = _asked(request, problem)
                try:
                    message = requeue(problem)
                except Exception as error:
                    _answered(entry, gettext("Not sent again: %(error)s") % {"error": error})
                    if isinstance(error, NOT_KNOWN):
                        raise
                    self._could_not(request, problem, error)
                    if isinstance(error, TypeError):
                        continue  # Of this row's task alone.
                    break
                if message is None:
                    before.append(problem.what)
                    entry.delete()
                    continue
                sent.append(problem.what)
                words = {"task": message.task, "task_id": message.task_id or "-"}
                _answered(entry, gettext("Sent its task again: %(task)s[%(task_id)s].") % words)
        finally:
            # Also of those that were sent before the store or the broker went away.
            self._say(request, "sent", sent)
            self._say(request, "before", before)

    def _could_not(self, request: HttpRequest, problem: Problem, error: Exception) -> None:
        if isinstance(error, TypeError):
            words = gettext("%(row)s cannot be sent from the row alone: %(error)s")
        else:
            words = gettext("%(row)s could not be sent, and none after it was tried: %(error)s")
        said = words % {"row": printable(problem.what), "error": printable(error)}
        self.model_admin.message_user(request, said, messages.ERROR)

    def _say(self, request: HttpRequest, outcome: str, rows: Sequence[str]) -> None:
        if not rows:
            return
        count = len(rows)
        words, level = {
            "sent": (
                ngettext("%(rows)s was sent again.", "%(rows)s were sent again.", count),
                messages.SUCCESS,
            ),
            "before": (
                ngettext(
                    "%(rows)s was sent a moment ago, and not again.",
                    "%(rows)s were sent a moment ago, and not again.",
                    count,
                ),
                messages.INFO,
            ),
            "over": (
                ngettext(
                    "%(rows)s is not lost any more, and was not sent.",
                    "%(rows)s are not lost any more, and were not sent.",
                    count,
                ),
                messages.INFO,
            ),
        }[outcome]
        names = listed([printable(row) for row in rows])
        self.model_admin.message_user(request, words % {"rows": names}, level)


def _seen(text: str) -> list[SeenRow]:
    """Raises `BadRequest` for what `encode_rows` did not make."""
    rows = from_json(text)
    if not isinstance(rows, list) or len(rows) > MOST_ROWS:
        raise BadRequest(NOT_SHOWN_HERE)
    return list(dict.fromkeys(map(_row, rows)))


def _row(parts: object) -> SeenRow:
    match parts:
        case [str(task), str(store), str(pk), (int() | None) as fence]:
            return SeenRow(task, store, pk, fence)
    raise BadRequest(NOT_SHOWN_HERE)


def _asked(request: HttpRequest, problem: Problem) -> LogEntry:
    """Write the entry of a row before its task is sent, so that none is sent without one."""
    assert problem.model is not None
    content_type = ContentType.objects.get_for_model(problem.model, for_concrete_model=False)
    words = gettext("Asked to send its task %(task)s again; no answer yet.")
    entry: LogEntry = LogEntry.objects.create(
        user_id=request.user.pk,
        content_type_id=content_type.pk,
        object_id=str(problem.pk),
        object_repr=problem.what[:200],
        action_flag=CHANGE,
        change_message=words % {"task": problem.task},
    )
    return entry


def _answered(entry: LogEntry, words: str) -> None:
    entry.change_message = printable(words)
    entry.save(update_fields=["change_message"])
