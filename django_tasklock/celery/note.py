"""The note of a message: how often it was started, and how its runs ended.

A broker delivers a message again if it does not know that the first delivery succeeded: the worker
was killed, the connection was cut, or the visibility timeout is over. The note counts the runs of
such a message, which the broker keeps until its run has ended. The acquire and the release of the
lock write it, without another round trip.

A start stays in the note until its run ends in order: one that stays is a death. Only the worker's
main process knows more. It counts a child that died before its start, and takes back the starts of
runs that end because the worker does.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from celery.exceptions import Ignore, Retry
from django.utils.functional import cached_property

from .._engine.service import LockService
from .._values.owner import Owner, process_words
from .._values.tokens import new_token, token_of
from ..stores.base import Note

# How long the note of an ended run is kept where a result backend also knows the result: longer
# than it takes to store a result.
END_NOTE_WITH_RESULT_SECONDS = 120.0
# How long the note is kept where nothing else knows that the run has ended: a redelivery may wait
# in a queue that long.
END_NOTE_SECONDS = 3600.0
# How long a start is counted that had no orderly end.
START_NOTE_SECONDS = 86400.0

# The text where the run ended in a retry or was replaced by another task: no result will come.
WENT_ON = "w"
# Of a key. With 96 bits no two of a billion runs have the same, and it is short.
KEY_CHARACTERS = 16
# What a text says by its first letter. A number of starts follows, a space, and whose they are, in
# so many words. A later version may write words more, which are not read.
SAYS: dict[str, tuple[Any, int]] = {"w": ("went on", 0), "e": ("ended", 3), "s": ("started", 1)}
_note = re.compile(r"w(?: .*)?|[es]([0-9]{1,9}) ([ -~]+)").fullmatch


class Skip(Exception):
    """The call is not to run. ``reason`` is that of the marker, ``holder`` who has the lock.
    ``joined``: the task id of a run that did its work, and what the call returns instead."""

    def __init__(self, reason: Any, holder: Owner | None = None, joined: Any = None) -> None:
        super().__init__(reason)
        self.reason, self.holder, self.joined = reason, holder, joined


class RowTaken(Exception):
    """A run has the row, which may have died: only the lock can tell."""


class CameBack(Ignore):
    """The message, or one in its place, is in the queue."""


class RunNote(NamedTuple):
    """The content of a note."""

    # The number of starts without an orderly end; after the end, with the start that ended.
    starts: int = 0
    # How the last run is known to have gone.
    says: Literal["went on", "ended", "started", "nothing", "unknown"] = "nothing"
    # Of a start: the token of the delivery that wrote it. Of an end: the `process_words` of the
    # process, which may still store the result.
    by: str = ""

    @classmethod
    def read(cls, text: str | None) -> RunNote:
        """Return the note with this text. Any other text is unknown, as that of a later version."""
        if (read := _note(text or "")) is None:
            return cls(says="unknown") if text else cls()
        says, words = SAYS[read[0][0]]
        return cls(int(read[1] or 0), says, " ".join((read[2] or "").split(" ")[:words]))


class Attempts:
    """The runs of one message, by its note: those before, and this delivery's own.

    Args:
        locks: the service of the store that keeps the note.
        request: Celery's, of the message.
        ours: our header of the message.
        counts: whether the runs are counted: the broker keeps the message until its run has ended.
        again: whether another run of the message may have started.
    """

    def __init__(
        self, locks: LockService, request: Any, ours: dict[str, Any], *, counts: bool, again: bool
    ) -> None:  # fmt: skip
        self._locks, self.counts, self.again = locks, counts, again
        self._request, self._sent = request, ours.get("sent")
        # Of this delivery, which its lease has too: the worker's main process has drawn it.
        self.token = ours.get("token") or new_token()
        # The note, and its text, by which the message was judged.
        self.note, self.seen = RunNote(), ""
        # The number of the start that this run has written; 0 if none.
        self.counted = 0

    @cached_property
    def key(self) -> str:
        """The store's name for the note."""
        # A task id may be used again: when it was sent distinguishes one sending from another. A
        # replacement has the id of the task that it replaces.
        of = self._request
        tried = f"{of.id}:{of.retries or 0}.{of.replaced_task_nesting or 0}:{self._sent or 0}"
        return self._locks.store.keyed_note(f"r{token_of(tried)[:KEY_CHARACTERS]}")

    # ------------------------------------------------------------------------ in the run

    def read(self) -> RunNote:
        """Return the note as it is now: the message is judged by it. Raises `StoreUnavailable`."""
        self.seen = self._locks.store.get_note(self.key) or ""
        self.note = RunNote.read(self.seen)
        return self.note

    def changed(self) -> bool:
        """Whether another run has started or ended since. Raises `StoreUnavailable`."""
        return (self._locks.store.get_note(self.key) or "") != self.seen

    def note_of_start(self) -> Note | None:
        """Return the note that the acquire writes, so that a run that dies is counted.

        None for a redelivery: the note of its earlier runs is read first.
        """
        return self._started(1) if self.counts and not self.again else None

    def count(self) -> None:
        """Write one start more than the note has. Raises `StoreUnavailable`."""
        self.counted = self.note.starts + 1
        self._locks.store.set_note(self._started(self.counted))

    def note_of_end(self, error: BaseException | None, *, keeps_results: bool) -> Note | None:
        """Return the note that the release of a run writes which ends with ``error``; None: the
        note stays. ``keeps_results``: whether the result backend knows the result too."""
        if not self.counts:
            return None
        if error is None or isinstance(error, Skip):
            ttl = END_NOTE_WITH_RESULT_SECONDS if keeps_results else END_NOTE_SECONDS
            return Note(self.key, f"e{self.counted} {process_words()}", ttl)
        if isinstance(error, Retry | Ignore) and not isinstance(error, CameBack):
            # A message that this run sent continues its work (`Task.retry`, `replace`).
            return Note(self.key, WENT_ON, END_NOTE_SECONDS)
        # What is no `Exception` ends the process: the main process knows whether that is a death.
        orderly = isinstance(error, Exception) and self.counted
        return self._started(self.counted - 1) if orderly else None

    def keep(self) -> None:
        """Keep the note while it is the only record, unless it was changed meanwhile."""
        if self.seen:
            self._locks.store.reserve(self.key, self.seen, END_NOTE_WITH_RESULT_SECONDS)

    # ------------------------------------------------------------------------ in the main process

    def died(self) -> int:
        """Count a run that has died, unless it has written its start. Returns how many have died.

        0 if the last run has ended after all, or that is not known. Raises `StoreUnavailable`.
        """
        note = self.read()
        if note.says not in ("started", "nothing"):
            return 0
        if note.by == self.token:
            return note.starts
        return note.starts + 1 if self.change(note.starts + 1) else 0

    def take_back(self) -> None:
        """Take back the start of this delivery's run, which ends with its worker. Raises
        `StoreUnavailable`."""
        note = self.read()
        if note.says == "started" and note.by == self.token:
            self.change(note.starts - 1, by=new_token())

    def change(self, starts: int, by: str | None = None) -> bool:
        """Write the note of so many starts. Returns False if another run has changed the note since
        it was read, or, if it was not, has written one."""
        store = self._locks.store
        if not starts:
            return store.unreserve(self.key, self.seen)
        note = self._started(starts, by)
        return store.reserve(note.key, note.text, note.ttl, over=self.seen) is None

    def _started(self, starts: int, by: str | None = None) -> Note:
        """The note after so many starts. After none its text is empty, which removes it."""
        # Its own text: if an acquire turns out to be in vain, nobody else's note is removed.
        text = f"s{starts} {by or self.token}" if starts else ""
        return Note(self.key, text, START_NOTE_SECONDS)
