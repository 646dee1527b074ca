"""The page "Queued": the jobs that a message in the queue is reserved for (``unique_while``)."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.admin.models import DELETION, LogEntry
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.urls import URLPattern
from django.utils.translation import gettext, gettext_lazy

from .._values.arguments import checked_name
from .._values.describe import duration, printable
from ..exceptions import ListingNotSupported
from ..models import Lock
from ..operators.clearing import Outcome
from ..operators.reservations import QueuedJob, clear_job, in_queued_order, queued_jobs
from ..operators.wording import OUTCOMES_IN_QUEUE
from ..stores import stores
from .outcomes import show_outcomes
from .page import Page, error_on_list
from .seen import from_json, to_json
from .store_reader import MAX_LOCKS_READ, NOT_KNOWN, aliases, problem_of
from .task_links import task_link

__all__ = ["QueuedPage"]

ROWS_SHOWN = 500
"""rows of the page: a form may have 1000 fields (DATA_UPLOAD_MAX_NUMBER_FIELDS)"""
NOT_SHOWN_HERE = "That is not a reservation that this page has shown."
_ONLY_SOME = gettext_lazy(
    "Of the reservations of “%(store)s” only the first %(count)d were looked at. In a shell, "
    "“manage.py locks list --queued” looks at all of them."
)


@dataclass(frozen=True)
class Row:
    """One row of the page; ``seen`` is what its check box carries."""

    name: str
    store: str
    ttl: str
    task: str
    task_id: str | None
    seen: str


class QueuedPage(Page):
    """The reservations, and the view that clears them."""

    def urls(self) -> list[URLPattern]:
        """Return the URLs of the page and of its POST."""
        return [
            self.path("queued/", self.queued_view, "queued"),
            # The log entries of what was cleared must stay when a store fails later.
            self.path("queued/clear/", self.clear_queued_view, "queued_clear", atomic=False),
        ]

    def queued_view(self, request: HttpRequest) -> HttpResponse:
        """Return the page with the reservations that have all words of ``q``.

        Raises `PermissionDenied`.
        """
        self.require_view(request)
        words = request.GET.get("q", "").split()
        found, problems = _look()
        jobs = [job for job in found if all(word in _text(job) for word in words)]
        shown = jobs[:ROWS_SHOWN]
        context = {
            "q": " ".join(words),
            "rows": [_row(job) for job in shown],
            "more": len(jobs) - len(shown),
            "stores": len(aliases()[0]) > 1,
            "problems": problems,
            "queued_url": self.url_of(request, "queued"),
        }
        if self.model_admin.has_delete_permission(request):
            context["clear_url"] = self.url_of(request, "queued_clear")
            context["shown"] = to_json([_parts(job) for job in shown])
        return self.rendered(request, "queued.html", gettext("Reserved in the queue"), context)

    @error_on_list
    def clear_queued_view(self, request: HttpRequest) -> HttpResponse:
        """Clear each reservation that was ticked, or all that were shown, as they were seen.

        Raises `PermissionDenied`, and `BadRequest` for what the page did not show.
        """
        self.require_delete(request)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if "all" in request.POST:
            seen = from_json(request.POST.get("shown", ""))
        else:
            seen = [from_json(box) for box in request.POST.getlist("seen")]
        if not isinstance(seen, list):
            raise BadRequest(NOT_SHOWN_HERE)
        by = f"{request.user.get_username()} in the admin"
        names: dict[Outcome, list[str]] = {outcome: [] for outcome in Outcome}
        try:
            for job in list(map(_job, seen)):
                outcome = clear_job(job, by=by)
                names[outcome].append(printable(job.name))
                if outcome is Outcome.CLEARED:
                    # At once: the process may not live to the last of them.
                    _log(request, job)
        finally:
            # Also of those that were cleared before the store went away.
            show_outcomes(self.model_admin, request, names, OUTCOMES_IN_QUEUE)
        return self.redirect(request, "queued")


def _look() -> tuple[list[QueuedJob], list[str]]:
    """The reservations of all stores, the soonest to end first, and what is in the way."""
    known, problem = aliases()
    jobs: list[QueuedJob] = []
    problems = [] if problem is None else [problem]
    for alias in known:
        try:
            found = queued_jobs(stores[alias], limit=MAX_LOCKS_READ + 1)
            jobs += found[:MAX_LOCKS_READ]
            if len(found) > MAX_LOCKS_READ:
                values = {"count": MAX_LOCKS_READ, "store": printable(alias)}
                problems.append(_ONLY_SOME % values)
        except ListingNotSupported:
            cannot = gettext("The store “%(store)s” cannot list its reservations.")
            problems.append(cannot % {"store": alias})
        except NOT_KNOWN as error:
            problems.append(problem_of(error))
    return in_queued_order(jobs, "ttl"), problems


def _text(job: QueuedJob) -> str:
    return f"{job.name} {job.task} {job.task_id}"


def _row(job: QueuedJob) -> Row:
    ttl = gettext("never expires") if job.ttl is None else duration(job.ttl)
    words = printable(job.name), job.store, ttl, printable(job.task), task_link(job.task_id)
    return Row(*words, to_json(_parts(job)))


def _parts(job: QueuedJob) -> list[str]:
    return [job.store, job.task, job.name, job.task_id]


def _job(parts: object) -> QueuedJob:
    """Raises `BadRequest` for what is not that of a row."""
    match parts:
        case [str(store), str(task), str(name), str(task_id)]:
            try:
                f"{task} {task_id}".encode("utf-8", "surrogateescape")
                return QueuedJob(task, checked_name(name), task_id, None, store)
            except ValueError:
                pass
    raise BadRequest(NOT_SHOWN_HERE)


def _log(request: HttpRequest, job: QueuedJob) -> None:
    """Write a LogEntry: who cleared it, and for which message it was reserved."""
    LogEntry.objects.log_actions(
        request.user.pk,
        [Lock.named(job.store, job.name)],
        DELETION,
        gettext(
            "Cleared in the queue. It was reserved for the task %(task)s[%(task_id)s] in the "
            "store “%(store)s”."
        )
        % {"task": printable(job.task), "task_id": printable(job.task_id), "store": job.store},
    )
