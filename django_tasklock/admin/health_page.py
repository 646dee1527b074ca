"""The page "Health": the problems that ``manage.py locks doctor`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils import translation
from django.utils.translation import gettext

from .._values.describe import printable
from ..operators.doctor import Problem, diagnose
from ..operators.wording import KINDS
from .page import Page
from .store_reader import NOT_KNOWN, problem_of

__all__ = ["HealthPage"]


@dataclass(frozen=True)
class Finding:
    """One row of the page."""

    serious: bool
    kind: str
    what: str
    message: str
    hint: str


class HealthPage(Page):
    """What is wrong, looked for when the page is opened: that asks the stores a lot."""

    def urls(self) -> list[URLPattern]:
        """Return the URL of the page."""
        return [self.path("health/", self.health_view, "health")]

    def health_view(self, request: HttpRequest) -> HttpResponse:
        """Return the page with all problems, the serious ones first. Raises `PermissionDenied`."""
        self.require_view(request)
        context: dict[str, Any] = {
            "findings": [],
            "contention_url": self.url_of(request, "contention"),
        }
        try:
            found = map(_finding, diagnose())
            context["findings"] = sorted(found, key=lambda finding: not finding.serious)
        except NOT_KNOWN as error:
            context["problem"] = problem_of(error)
        return self.rendered(request, "health.html", gettext("Health of the locks"), context)


def _finding(problem: Problem) -> Finding:
    message, hint = _words(problem)
    return Finding(
        problem.serious,
        str(KINDS.get(problem.kind, problem.kind)),
        printable(problem.what),
        printable(message),
        printable(hint),
    )


def _words(problem: Problem) -> tuple[str, str]:
    """Why, and what to do, in the page's language.

    What a check of the settings or of a server found is in English, like every system check of
    Django.
    """
    wording = problem.wording
    if wording is not None:
        hint = wording.page_hint or wording.hint
        return (
            translation.gettext(wording.page_message) % problem.values,
            # gettext of an empty string is the catalog's header.
            translation.gettext(hint) % problem.values if hint else "",
        )
    if problem.error is not None:
        return problem_of(problem.error), problem.hint
    return problem.message, problem.hint
