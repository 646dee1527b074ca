"""The page "Health": what ``manage.py locks doctor`` says."""

from __future__ import annotations

from dataclasses import dataclass

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext

from ..describe import printable
from ..doctor import SHARED_PREFIX, Problem, diagnose
from .live import LiveAdmin
from .shelf import NOT_KNOWN, problem_of

__all__ = ["HealthAdmin"]


@dataclass(frozen=True)
class Finding:
    """One row of the page."""

    serious: bool
    kind: str
    what: str
    message: str
    hint: str


class HealthAdmin(LiveAdmin):
    """The part of `LockAdmin` that shows what is wrong, on request: it asks a lot."""

    def get_urls(self) -> list[URLPattern]:
        health = path(
            "health/",
            self.admin_site.admin_view(self.health_view),
            name=f"{self.opts.app_label}_{self.opts.model_name}_health",
        )
        return [health, *super().get_urls()]

    def health_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": gettext("Health of the locks"),
            "opts": self.opts,
            "media": self.media,
            "findings": [],
            "list_url": self.url_of(request, "changelist"),
        }
        try:
            found = map(_finding, diagnose())
            context["findings"] = sorted(found, key=lambda finding: not finding.serious)
        except NOT_KNOWN as error:
            context["problem"] = problem_of(error)
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/django_tasklock/lock/health.html", context)


def _finding(problem: Problem) -> Finding:
    kinds = {
        "lost work": gettext("lost work"),
        "unknown": gettext("unknown"),
        "owner gone": gettext("owner gone"),
        "no ttl": gettext("no TTL"),
        "no message": gettext("no message"),
        "settings": gettext("settings"),
        "server": gettext("server"),
    }
    message, hint = _words(problem)
    return Finding(
        problem.serious,
        kinds.get(problem.kind, problem.kind),
        printable(problem.what),
        printable(message),
        printable(hint),
    )


def _words(problem: Problem) -> tuple[str, str]:
    """Why, and what to do, in the page's language. What a check of the settings or of a server
    found is said as the check says it, like every system check of Django."""
    command = {"command": problem.command}
    if problem.kind == "lost work" and problem.work is not None:
        return (
            gettext("The row is “%(status)s”, and nobody holds its lock.")
            % {"status": problem.work.guard.to},
            gettext("Send it again: %(command)s") % command,
        )
    if problem.kind == "owner gone":
        return (
            gettext("It is held by a process that is gone."),
            gettext("It ends by itself; or: %(command)s") % command,
        )
    if problem.kind == "no ttl":
        return (
            gettext("It is held by a key that never expires."),
            gettext("If nobody works under it: %(command)s") % command,
        )
    if problem.kind == "no message":
        return (
            gettext("Calls are duplicates of a message that the broker does not have."),
            gettext("It ends by itself; or: %(command)s") % command,
        )
    if problem.kind == "unknown" and problem.work is not None:
        return (
            gettext("Rows that are “%(status)s”, and whose locks’ names cannot be told: %(count)d.")
            % {"status": problem.work.guard.to, "count": problem.count},
            gettext(
                "Make the lock_name of %(task)s, and of every task that claims these rows, of the "
                "guard’s argument alone."
            )
            % {"task": problem.work.task},
        )
    if problem.error is not None:
        return problem_of(problem.error), problem.hint
    if problem.message == SHARED_PREFIX:
        shared = gettext(
            "Its keys do not begin as the locks’ do alone: those without a TTL cannot be found."
        )
        return shared, problem.hint
    return problem.message, problem.hint
