"""The note of one try of a message: how often it was started, and whether it has ended.

The acquire and the release of the lock write it, without another round trip, for messages that the
broker keeps until their run has ended. A start that stays in the note is a run that died: an
orderly end overwrites it, or takes it back if the message is to run again.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import NamedTuple

from .._values.owner import Owner
from .._values.owner_record import owner_record

__all__ = ["NOT_NEEDED", "WENT_ON", "RunNote"]

WENT_ON = "went on"
"""the text where the run ended in a retry or was replaced by another task: no result will come"""
NOT_NEEDED = "not needed"
"""the text for a retry that may have been sent, where the run that would have sent it was repeated
and has done the work"""
_REASONS = {
    WENT_ON: "its run continued in another message",
    NOT_NEEDED: "a redelivery of the message that sent it has run",
}


class RunNote(NamedTuple):
    """The content of a note."""

    starts: int = 0
    """the number of starts without an orderly end; after the end, with the start that ended"""
    ended_in: Owner | None = None
    """the process in which the run has ended; None: it has not ended"""
    not_needed: str = ""
    """why no run is needed, whatever the result backend says"""

    @classmethod
    def read(cls, text: str | None) -> RunNote:
        """Return the note with this text. A text that is not a note counts as empty."""
        if text in _REASONS:
            return cls(not_needed=_REASONS[text])
        with suppress(ValueError, AttributeError, TypeError, RecursionError):
            record = json.loads(text or "{}")
            starts = record.get("starts")
            return cls(
                starts if type(starts) is int and starts > 0 else 0,
                Owner.of_anybody(record) if record.get("pid") is not None else None,
            )
        return cls()

    @staticmethod
    def started(starts: int, by: str = "") -> str:
        """Return the text after so many starts. After none it is empty, which removes the note.

        ``by``: what distinguishes it from all other notes, printable ASCII without quotes.
        """
        return f'{{"starts": {starts}, "by": "{by}"}}' if starts else ""

    @staticmethod
    def ended(starts: int) -> str:
        """Return the text of a run that has ended now, in this process."""
        return json.dumps({**owner_record(), "starts": starts})
