"""The note of one try of a message: that it was started, and that it has ended.

It is written by the acquire and the release of the lock, in their own round trips, for messages
that outlive their runs. A start that stays is a run that died: an orderly end writes over it, or
takes it back where the message is to run again.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import NamedTuple

from ..owner import Owner, owner_record

__all__ = ["RunNote"]

WENT_ON = "went on"


class RunNote(NamedTuple):
    """What the note says."""

    starts: int = 0
    """how often the try was started without an orderly end; after its end, that start included"""
    ended_in: Owner | None = None
    """the process in which it has ended"""
    went_on: bool = False
    """it has ended in a retry, or in another task that replaced it: no result is to come"""

    @classmethod
    def read(cls, text: str | None) -> RunNote:
        """A note as the store has it; what does not fit says nothing."""
        if text == WENT_ON:
            return cls(went_on=True)
        with suppress(ValueError, AttributeError, TypeError, RecursionError):
            record = json.loads(text or "{}")
            starts = record.get("starts")
            return cls(
                starts if type(starts) is int and starts > 0 else 0,
                Owner.of_anybody(record) if record.get("pid") is not None else None,
            )
        return cls()

    @staticmethod
    def started(starts: int) -> str:
        """The text after so many starts; empty, so that there is no note, after none."""
        return f'{{"starts": {starts}}}' if starts else ""

    @staticmethod
    def ended(starts: int) -> str:
        """The text of a run that has ended here and now."""
        return json.dumps({**owner_record(), "starts": starts})
