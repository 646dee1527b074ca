"""The page "Queued": the jobs that a message in the queue is reserved for (``unique_while``)."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib import messages
from django.contrib.admin.models import DELETION, LogEntry
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext, ngettext

from ..arguments import checked_name
from ..clearing import Outcome
from ..describe import duration, printable
from ..exceptions import ListingNotSupported
from ..models import Lock
from ..queued import QueuedJob, clear_job, in_queued_order, queued_jobs
from ..stores import stores
from .clear import listed, said_plainly, sentence_of, written_at_once
from .health import HealthAdmin
from .seen import from_json, to_json
from .shelf import LOOK, NOT_KNOWN, aliases, problem_of

__all__ = ["QueuedAdmin"]

SHOWN = 500
"""rows of the page: a form may have 1000 fields (DATA_UPLOAD_MAX_NUMBER_FIELDS)"""
NOT_OURS = "That is not a reservation that this page has shown."


@dataclass(frozen=True)
class Row:
    """One row of the page; ``seen`` is what its check box carries."""

    name: str
    store: str
    ttl: str
    task: str
    task_id: str
    seen: str


class QueuedAdmin(HealthAdmin):
    """The part of `LockAdmin` that shows reservations, and clears them."""

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        view = self.admin_site.admin_view(self.queued_view)
        clear = written_at_once(self.admin_site.admin_view(self.clear_queued_view))
        return [
            path("queued/", view, name=f"{name}_queued"),
            path("queued/clear/", clear, name=f"{name}_queued_clear"),
            *super().get_urls(),
        ]

    def queued_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        words = request.GET.get("q", "").split()
        found, problems = _look()
        jobs = [job for job in found if all(word in _text(job) for word in words)]
        shown = jobs[:SHOWN]
        context = {
            **self.admin_site.each_context(request),
            "title": gettext("Reserved in the queue"),
            "opts": self.opts,
            "media": self.media,
            "q": " ".join(words),
            "rows": [_row(job) for job in shown],
            "more": len(jobs) - len(shown),
            "stores": len(aliases()[0]) > 1,
            "problems": problems,
            "list_url": self.url_of(request, "changelist"),
            "queued_url": self.url_of(request, "queued"),
        }
        if self.has_delete_permission(request):
            context["clear_url"] = self.url_of(request, "queued_clear")
            context["shown"] = to_json([_parts(job) for job in shown])
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/django_tasklock/lock/queued.html", context)

    @said_plainly
    def clear_queued_view(self, request: HttpRequest) -> HttpResponse:
        """Clear each reservation that was ticked, or all that were shown, as they were seen."""
        if not self.has_delete_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if "all" in request.POST:
            seen = from_json(request.POST.get("shown", ""))
        else:
            seen = [from_json(box) for box in request.POST.getlist("seen")]
        if not isinstance(seen, list):
            raise BadRequest(NOT_OURS)
        by = f"{request.user.get_username()} in the admin"
        became: dict[Outcome, list[str]] = {outcome: [] for outcome in Outcome}
        try:
            for job in list(map(_job, seen)):
                outcome = clear_job(job, by=by)
                became[outcome].append(printable(job.name))
                if outcome is Outcome.CLEARED:
                    # At once: the process may not live to the last of them.
                    _log(request, job)
        finally:
            # Also of those that were cleared before the store went away.
            for outcome, names in became.items():
                if names:
                    level, sentence = _sentence(outcome, len(names))
                    self.message_user(request, sentence % {"names": listed(names)}, level)
        return HttpResponseRedirect(self.url_of(request, "queued"))


def _look() -> tuple[list[QueuedJob], list[str]]:
    """The reservations of all stores, the soonest to end first, and what is in the way."""
    known, problem = aliases()
    jobs: list[QueuedJob] = []
    problems = [] if problem is None else [problem]
    for alias in known:
        try:
            jobs += queued_jobs(stores[alias], limit=LOOK)
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
    words = printable(job.name), job.store, ttl, printable(job.task), printable(job.task_id)
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
    raise BadRequest(NOT_OURS)


def _log(request: HttpRequest, job: QueuedJob) -> None:
    """Write a LogEntry: who cleared it, and for which message it was reserved."""
    LogEntry.objects.log_actions(
        request.user.pk,
        [Lock(id=Lock.id_of(job.store, job.name), name=job.name, store=job.store)],
        DELETION,
        gettext(
            "Cleared in the queue. It was reserved for the task %(task)s[%(task_id)s] in the "
            "store “%(store)s”."
        )
        % {"task": printable(job.task), "task_id": printable(job.task_id), "store": job.store},
    )


def _sentence(outcome: Outcome, count: int) -> tuple[int, str]:
    if outcome is not Outcome.NOT_LOCKED:
        return sentence_of(outcome, count)
    return messages.INFO, ngettext(
        "%(names)s was not reserved any more.", "%(names)s were not reserved any more.", count
    )
