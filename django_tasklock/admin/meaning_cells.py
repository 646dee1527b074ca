"""What a clear would mean, on the page that asks."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils import translation
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext

from .._values.describe import age, duration, printable
from ..operators.meaning import Meaning
from ..operators.wording import HOLDERS, NOTICES

__all__ = ["meaning_cell", "summary_of"]


def meaning_cell(meaning: Meaning) -> SafeString:
    """Return the mark "safe" or "not safe", and why, one sentence on each line."""
    state, word = ("safe", gettext("safe")) if meaning.safe else ("unsafe", gettext("not safe"))
    sentences = [translation.gettext(HOLDERS[meaning.holder]), _notice(meaning), _queue(meaning)]
    return format_html(
        '<span class="tasklock-life tasklock-{}">{}</span> {}',
        state,
        word,
        format_html_join(
            "", '<span class="tasklock-why">{}</span>', ((each,) for each in sentences if each)
        ),
    )


def summary_of(found: Sequence[Meaning]) -> tuple[bool, str]:
    """Return whether all are safe to clear, and a sentence that says so, or how many are not."""
    unsafe = sum(not meaning.safe for meaning in found)
    if not unsafe:
        return True, gettext("Safe to clear: no two runs overlap.")
    sentence = ngettext(
        "Not safe to clear: %(unsafe)d of %(count)d lock.",
        "Not safe to clear: %(unsafe)d of %(count)d locks.",
        len(found),
    )
    return False, sentence % {"unsafe": unsafe, "count": len(found)}


def _notice(meaning: Meaning) -> str:
    text = NOTICES[meaning.notice]
    if not text:
        return ""
    return translation.gettext(text) % {"duration": duration(meaning.seconds or 0)}


def _queue(meaning: Meaning) -> str:
    waiting, following = meaning.waiting, meaning.next
    if following is not None:
        who = printable(following)
        if following.waiting_since is not None:
            waits = duration(age(following.waiting_since))
            who = gettext("%(owner)s, who waits for %(duration)s") % {
                "owner": who, "duration": waits,
            }  # fmt: skip
        if waiting is None:
            return gettext("Next is %(owner)s.") % {"owner": who}
        sentence = ngettext(
            "%(count)d waits; next is %(owner)s.", "%(count)d wait; next is %(owner)s.", waiting
        )
        return sentence % {"count": waiting, "owner": who}
    if waiting is None:
        return gettext("Who waits is not known.")
    if not waiting:
        return gettext("Nobody waits.")
    return ngettext("%(count)d waits.", "%(count)d wait.", waiting) % {"count": waiting}
