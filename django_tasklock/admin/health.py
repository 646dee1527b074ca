"""The page "Health": what the doctor finds, worst first, each with its button."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.db import Error as DatabaseError
from django.http import HttpRequest
from django.utils.translation import gettext

from .._values.words import printable
from ..operators.doctor import diagnose
from ..operators.held import Outcome, QueuedJob, clear_job
from ..operators.lost_work import requeue, still_lost
from ..operators.problems import SENT, GoneMessage, LockProblem, LostRow, Problem, weight_of
from .clear_and_hold import log, say, user_name
from .parts import address, lock_url, row_url
from .reading import NOT_KNOWN, lock_of, problem_of

# What a page has signed with this word is a reservation that it has shown.
JOB = "tasklock reservation"
# How old a page may be whose button is pressed.
SHOWN_SECONDS = 86400
MOST_FINDINGS = 200


def findings(request: HttpRequest, site: admin.AdminSite, *, may_clear: bool) -> dict[str, Any]:
    """Return what the page's template needs.

    ``may_clear``: whether the user may clear locks, end reservations, and send rows again that they
    may change.
    """
    try:
        found = sorted(diagnose(), key=weight_of)
    except (*NOT_KNOWN, DatabaseError) as error:
        return {"problem": problem_of(error)}
    shown = found[:MOST_FINDINGS]
    rows = [_finding(request, site, problem, may_clear=may_clear) for problem in shown]
    return {
        "findings": rows,
        "total": len(found),
        "gone": [row["lock_id"] for row in rows if "lock_id" in row and row["gone"]],
        "lost": [row["row"] for row in rows if row.get("sure")],
        "over": [row["job"] for row in rows if "job" in row and row["ended"]],
    }


def _finding(
    request: HttpRequest, site: admin.AdminSite, problem: Problem, *, may_clear: bool
) -> dict[str, Any]:
    """A row of the table; with ``lock_id``, ``row`` or ``job``, which its button sends."""
    shown: dict[str, Any] = {
        "serious": problem.serious,
        "kind": gettext(problem.kind),
        "what": printable(problem.what),
        "message": printable(problem.message),
        "hint": printable(problem.hint),
    }
    match problem:
        case LostRow():
            shown["url"] = row_url(site, request, problem.work.guard.model, problem.pk)
            # Those of another store are sent by the command alone.
            if may_clear and problem.kind in SENT[:-1] and _may_send(request, site, problem):
                sure = problem.kind == "lost work" and not problem.asks
                shown |= {"row": problem, "sure": sure}
        case LockProblem(info=info):
            shown["url"] = lock_url(request, info.store, info.name)
            if may_clear:
                shown |= {"lock_id": lock_of(info).pk, "gone": problem.kind == "owner gone"}
                shown["clear_url"] = address(request, "delete", shown["lock_id"])
        case GoneMessage(job=job):
            shown["url"] = lock_url(request, job.store, job.name)
            if may_clear:
                signed = signing.dumps({**job.as_json(), "ttl": None}, salt=JOB)
                shown |= {"job": signed, "ended": problem.ended}
    return shown


def _may_send(request: HttpRequest, site: admin.AdminSite, lost: LostRow) -> bool:
    """Whether the user may change the row: its task will."""
    model = lost.work.guard.model
    registered = site.is_registered(model)
    rows = site.get_model_admin(model) if registered else admin.ModelAdmin(model, site)
    return rows.has_change_permission(request)


def send_again(request: HttpRequest, site: admin.AdminSite) -> None:
    """Send the task of each posted row that is still lost as it was shown; say what was sent.

    Raises `PermissionDenied`, and `TaskLockError`.
    """
    rows = still_lost(request.POST.getlist("row"))
    if not all(_may_send(request, site, lost) for lost in rows):
        raise PermissionDenied
    sent: list[str] = []
    try:
        for lost in rows:
            # Before its task is sent, so that none is sent without an entry.
            words = gettext("Asked to send its task %(task)s again.") % {"task": lost.work.task}
            row = [lost.work.guard.rows().get(pk=lost.pk)]
            LogEntry.objects.log_actions(request.user.pk, row, CHANGE, words)
            if requeue(lost)[0]:
                sent.append(lost.what)
    except Exception as error:  # Of the broker, the store, or one row's arguments.
        words = gettext("Sending ended with an error: %(error)s")
        messages.error(request, words % {"error": printable(problem_of(error))})
    else:
        if not sent:
            words = gettext(
                "Nothing was sent: the rows are no longer lost, or were sent a moment ago."
            )
            messages.info(request, words)
    say(request, gettext("Sent again: %(names)s."), messages.SUCCESS, sent)


def end_reservations(request: HttpRequest) -> None:
    """End each posted reservation that is still the one that was shown; say what became of it.

    Raises `PermissionDenied` for what no page has shown.
    """
    names: dict[bool, list[str]] = {True: [], False: []}
    try:
        for posted in request.POST.getlist("job"):
            job = QueuedJob(**signing.loads(posted, salt=JOB, max_age=SHOWN_SECONDS))
            words = gettext("Asked to end its reservation for %(message)s.")
            log(request, job, words % {"message": printable(f"{job.task}[{job.task_id}]")})
            names[clear_job(job, by=user_name(request)) is Outcome.CLEARED].append(job.name)
    except (signing.BadSignature, TypeError) as error:  # Or it is of another release.
        raise PermissionDenied from error
    except NOT_KNOWN as error:
        messages.error(request, problem_of(error))
    words = gettext("Ended, so the next call is sent: %(names)s.")
    say(request, words, messages.SUCCESS, names[True])
    say(request, gettext("Nothing to end any more: %(names)s."), messages.INFO, names[False])
