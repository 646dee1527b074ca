"""The page "Health": what the doctor finds, worst first, each with its button."""

from __future__ import annotations

from itertools import islice
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.db import Error as DatabaseError
from django.http import HttpRequest
from django.utils.translation import gettext

from .._values.printable import printable
from ..models import Lock
from ..operators.clearing import Outcome
from ..operators.doctor import diagnose
from ..operators.lost_work import requeue, still_lost
from ..operators.problems import KINDS, Problem
from ..operators.reservations import QueuedJob, clear_job
from .cells import row_url
from .clear import listed_names, log, user_name
from .reading import NOT_KNOWN, problem_of
from .rows import lock_of
from .tabs import MOST_FINDINGS, address, counted

# What a page has signed with this word is a reservation that it has shown.
JOB = "tasklock reservation"
# How old a page may be whose button is pressed.
SHOWN_SECONDS = 86400


def findings(request: HttpRequest, site: admin.AdminSite, *, may_clear: bool) -> dict[str, Any]:
    """Return what the page's template needs.

    ``may_clear``: whether the user may clear locks, end reservations, and send rows again that they
    may change.
    """
    try:
        found = list(islice(diagnose(), MOST_FINDINGS + 1))
    except (*NOT_KNOWN, DatabaseError) as error:
        return {"problem": problem_of(error)}
    counted(len(found))
    shown = sorted(found[:MOST_FINDINGS], key=lambda each: (not each.serious, each.kind))
    rows = [_finding(request, site, problem, may_clear=may_clear) for problem in shown]
    return {
        "findings": rows,
        "more": len(found) > MOST_FINDINGS,
        "gone": [row["lock_id"] for row in rows if row["lock_id"] and row["gone"]],
        "lost": [row["row"] for row in rows if row["row"]],
        "over": [row["job"] for row in rows if row["job"] and row["ended"]],
    }


def _finding(
    request: HttpRequest, site: admin.AdminSite, problem: Problem, *, may_clear: bool
) -> dict[str, Any]:
    """``lock_id``, ``row`` and ``job`` are what its button sends, and empty where there is none."""
    lock_id = row = job = ""
    if may_clear and problem.sendable and _may_send(request, site, problem.model):
        row = problem.seen
    elif may_clear and problem.info:
        lock_id = lock_of(problem.info).pk
    elif may_clear and problem.job:
        job = signing.dumps({**problem.job.as_json(), "ttl": None}, salt=JOB)
    return {
        "serious": problem.serious,
        "gone": problem.kind == "owner gone",
        "ended": problem.ended,
        "kind": KINDS[problem.kind],
        "what": printable(problem.what),
        "url": _url(request, site, problem),
        "message": printable(problem.message),
        "hint": printable(problem.hint),
        "lock_id": lock_id,
        "clear_url": address(request, "delete", lock_id) if lock_id else "",
        "row": row,
        "job": job,
    }


def _url(request: HttpRequest, site: admin.AdminSite, problem: Problem) -> str | None:
    of_row = problem.kind in ("lost work", "fence", "unknown")
    if of_row and problem.model is not None and problem.pk is not None:
        return row_url(site, request, problem.model, problem.pk)
    if problem.lock is None or problem.store is None:
        return None
    lock_id = Lock.named(problem.store, problem.lock).id
    return address(request, "change", lock_id, store=problem.store)


def _may_send(request: HttpRequest, site: admin.AdminSite, model: Any) -> bool:
    """Whether the user may change the rows: their task will."""
    registered = site.is_registered(model)
    rows = site.get_model_admin(model) if registered else admin.ModelAdmin(model, site)
    return rows.has_change_permission(request)


def send_again(request: HttpRequest, site: admin.AdminSite) -> None:
    """Send the task of each posted row that is still lost as it was shown; say what was sent.

    Raises `PermissionDenied`, and `TaskLockError`.
    """
    lost: Any = still_lost(request.POST.getlist("row"))
    if not all(_may_send(request, site, problem.model) for problem in lost):
        raise PermissionDenied
    counted(None)
    sent: list[str] = []
    try:
        for problem in lost:
            # Before its task is sent, so that none is sent without an entry.
            words = gettext("Asked to send its task %(task)s again.") % {"task": problem.task}
            row = [problem.model(pk=problem.pk)]
            LogEntry.objects.log_actions(request.user.pk, row, CHANGE, words)
            if requeue(problem)[0]:
                sent.append(problem.what)
    except Exception as error:  # Of the broker, the store, or one row's arguments.
        words = gettext("Sending ended with an error: %(error)s")
        messages.error(request, words % {"error": printable(problem_of(error))})
    else:
        if not sent:
            words = gettext(
                "Nothing was sent: the rows are no longer lost, or were sent a moment ago."
            )
            messages.info(request, words)
    if sent:
        words = gettext("Sent again: %(rows)s.") % {"rows": listed_names(sent)}
        messages.success(request, words)


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
            outcome = clear_job(job, by=user_name(request))
            names[outcome is Outcome.CLEARED].append(job.name)
    except (signing.BadSignature, TypeError) as error:  # Or it is of another release.
        raise PermissionDenied from error
    except NOT_KNOWN as error:
        messages.error(request, problem_of(error))
    counted(None)
    if ended := names[True]:
        words = gettext("Ended, so the next call is sent: %(names)s.")
        messages.success(request, words % {"names": listed_names(ended)})
    if left := names[False]:
        words = gettext("Nothing to end any more: %(names)s.")
        messages.info(request, words % {"names": listed_names(left)})
