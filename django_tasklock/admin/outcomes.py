"""Messages about what became of locks, or reservations, that an operator wanted to clear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.utils.translation import gettext

from ..operators.clearing import Outcome
from ..operators.wording import OUTCOMES
from .page import LockModelAdmin

__all__ = ["show_outcomes"]

NAMES_PER_MESSAGE = 5
LEVELS = {
    Outcome.CLEARED: messages.SUCCESS,
    Outcome.CHANGED_HANDS: messages.WARNING,
    Outcome.NOT_LOCKED: messages.INFO,
}


def show_outcomes(
    model_admin: LockModelAdmin,
    request: HttpRequest,
    names_by_outcome: Mapping[Outcome, list[str]],
    sentences: Mapping[Outcome, Any] = OUTCOMES,
) -> None:
    """Show one message for each outcome, with the names that had it."""
    for outcome, names in names_by_outcome.items():
        if names:
            values = {"names": listed(names), "count": len(names)}
            model_admin.message_user(request, sentences[outcome] % values, LEVELS[outcome])


def listed(names: list[str]) -> str:
    """Return the names for a sentence: the first few, and how many more."""
    listed = gettext(", ").join(f"“{name}”" for name in names[:NAMES_PER_MESSAGE])
    more = len(names) - NAMES_PER_MESSAGE
    if more <= 0:
        return listed
    return gettext("%(names)s and %(count)d more") % {"names": listed, "count": more}
