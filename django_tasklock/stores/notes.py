"""Notes and reservations: texts that a store keeps under keys of their own, beside its locks.

By notes tasks recognise a redelivery, by reservations they keep duplicates out of the queue. Both
are records under names with a space, which no lock has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from .._values.lock_info import LockInfo
from ..exceptions import StoreUnavailable
from .contract import ATTEMPTS, Contract
from .records import ANY, FREE, KEEP, LISTED, Change, Foreign, Held, Note, note_name, note_record


class Reserved(NamedTuple):
    """A reservation: the key is reserved for the text. ``ttl``: seconds left; None: it never
    ends."""

    key: str
    text: str
    ttl: float | None


class Notes(Contract):
    """The verbs of notes and reservations."""

    def keyed_note(self, key: str) -> str:
        """`keyed`, for the key of a note or a reservation."""
        return self.keyed(note_name(key))

    def get_note(self, key: str) -> str | None:
        """The text of a note or a reservation; None: there is none."""
        entry = self.get([note_name(key)])[0]
        return None if entry is None else entry.text

    def set_note(self, note: Note) -> None:
        """Write a note, over the note or the reservation that may be there; with an empty text,
        remove it."""
        self.put([noting(note, ANY)])

    def update_note(
        self, key: str, change: Callable[[str | None], str | None], ttl: float
    ) -> str | None:
        """Write what ``change`` makes of a note, if nobody else changes the note at the same time.
        Two that write the same text count as one whose reply was lost: a text names its writer.

        Args:
            key: the note's.
            change: called with the note's text, or None if there is none; once more with the next
                text if somebody else has changed the note meanwhile. Returns the new text, an empty
                one to remove the note, or None to leave it as it is.
            ttl: seconds from now, of a note that is written.

        Returns:
            The note's text now; None if there is none.
        """
        for _ in range(ATTEMPTS):
            entry = self.get([note_name(key)])[0]
            text = None if entry is None else entry.text
            new = change(text)
            if new is None:
                return text
            expect = FREE if entry is None else entry.itself
            if self.put([noting(Note(key, new, ttl), expect)]).made:
                return new or None
        raise StoreUnavailable(self.alias, "others change a note all the time")

    def reserve(
        self, key: str, text: str, ttl: float, *, over: str = "", unless_held: str | None = None
    ) -> str | LockInfo | None:
        """Reserve a key for a text, unless it is reserved for another one.

        Args:
            key: any text; notes and reservations share their keys.
            text: a key that is reserved for this text already is reserved anew.
            ttl: seconds from now.
            over: a text that counts as none: it is written over.
            unless_held: the name of a lock; while it is held, no new reservation is made.

        Returns:
            None if the key is reserved for the text now. Otherwise what is in the way: the other
            text, or what holds the lock ``unless_held``.
        """
        note = Note(key, text, ttl)
        expect: str | Held | Foreign = FREE
        free = [] if unless_held is None else [Change(unless_held, FREE, KEEP)]
        for _ in range(ATTEMPTS):
            # In this order: where they are not made together, nothing has to be undone.
            done = self.put([*free, noting(note, expect)])
            if done.made:
                return None
            *locks, entry = done.entries
            there = None if entry is None else entry.text
            if there == text:
                free = []  # It is reserved already, held or not.
            elif there is not None and there != over:
                return there
            elif locks and locks[0] is not None:
                return self.info(locks[0])
            # Nothing, a text that counts as none, or a value that nobody should write there.
            expect = FREE if entry is None else entry.itself
        raise StoreUnavailable(self.alias, "a reservation could not be written over another one")

    def unreserve(self, key: str, text: str | None) -> bool:
        """End a reservation, or remove a note, if it has this text; None: whatever it has. Returns
        False if it has another one, or with a text if there is none."""
        expect = ANY if text is None else Held(note_record(text)["token"])
        return self.put([Change(note_name(key), expect, None)]).made

    def reservations(self) -> Iterator[Reserved]:
        """Live reservations whose keys begin with `LISTED_KEY_PREFIX`, the soonest to end first.

        Raises `ListingNotSupported`.
        """
        for entry in self.list(LISTED):
            if entry.record is not None and entry.text is not None:
                key = entry.record.get("key", str(entry.name)[1:])
                yield Reserved(key, entry.text, entry.left)


def noting(note: Note, expect: str | Held | Foreign) -> Change:
    """Return the change that writes a note, or removes it."""
    if not note.text:
        return Change(note_name(note.key), expect, None)
    return Change(note_name(note.key), expect, note_record(note.text, note.key), note.ttl)
