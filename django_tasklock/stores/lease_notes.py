"""Notes and reservations for every store: each one is a lease of a reserved name.

A note's key is turned into the name `NAME_PREFIX` + digest. The text is in the owner's fields of
the lease's record, and the token is a digest of the text. So the store's own acquire reserves a
key for one text at a time, and its own release removes nothing but that text.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import fields
from hashlib import sha256
from typing import Any

from .._values.arguments import LONGEST_TEXT_BYTES
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from .._values.tokens import TOKEN_CHARACTERS
from ..exceptions import StoreUnavailable
from .required import RequiredMethods
from .values import Grant, Note, Refusal

__all__ = ["NAME_PREFIX", "LeaseNotes"]

NAME_PREFIX = "tasklock-note:"
"""the beginning of the names under which notes are kept; users must give no lock such a name"""
TEXT_FIELDS = ("task_id", "task", "thread", "host", "boot", "pidns")
"""the owner's fields that carry a text, in pieces of `LONGEST_TEXT_BYTES` bytes"""
NOTE_ATTEMPTS = 100
"""how often a note is written over, at most, where others write it at the same time"""

assert {*TEXT_FIELDS} <= {field.name for field in fields(Owner)}


class LeaseNotes(RequiredMethods):
    """The optional methods for notes and reservations, made of the five required ones.

    What this default costs: one call of a required method for most verbs. Two more for a text that
    is written over another one, one more for `reserve` with ``unless_held`` and for an acquire with
    a note, and two more for a release with a note.

    What it does not promise:

    * `acquire_with_note` writes no note (`Grant.noted` is False); the service writes it with a
      second call. `release_with_note` writes the note before it releases. A process that dies
      between the two calls leaves the one without the other.
    * While a text is written over another one, there is none for a moment.
    * `reserve` looks at ``unless_held`` before it reserves. A lock that is acquired between the
      two is not noticed.
    * A text has at most 1530 characters: ASCII characters count once, others up to ten times.
    * A store that lists its locks lists the notes among them, under names that begin with
      `NAME_PREFIX`. It should implement these methods itself, or leave those names out.

    Everything else is as reliable as the store's own acquire and release.
    """

    def get_note(self, key: str) -> str | None:
        """The text of a note or a reservation.

        Args:
            key: any text.

        Returns:
            None if there is none, or its ttl is over. Raises `StoreUnavailable`.
        """
        holder = self.get(_name_of(key))
        return None if holder is None else _text_of(holder)

    def set_note(self, note: Note) -> None:
        """Write a note, over the note or the reservation that may be there.

        Args:
            note: with an empty text, what is there is removed.

        Raises `StoreUnavailable`.
        """
        name = _name_of(note.key)
        if not note.text:
            self.clear(name)
            return
        for _ in range(NOTE_ATTEMPTS):
            holder = self._keep(name, note.text, note.ttl)
            if holder is None:
                return
            self.clear(name, holder.token)
        raise StoreUnavailable(self.alias, "a note could not be written over another one")

    def acquire_with_note(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any], note: Note
    ) -> Grant | Refusal:
        """`acquire`, which may write a note in the same step.

        Args:
            name, token, ttl, owner: as for `acquire`.
            note: written if the lock is granted, unless its key has another text.

        Returns:
            As `acquire`; `Grant.noted` says whether the note was written. If it was not, the
            caller writes it with `reserve`, which keeps another text too. Raises
            `StoreUnavailable`.
        """
        return self.acquire(name, token, ttl, owner)

    def release_with_note(self, name: str, token: str, proof: Any, note: Note) -> bool:
        """`release`, and write a note if the lease still held the lock.

        Args:
            name, token, proof: as for `release`.
            note: with an empty text, the note that is there is removed.

        Returns:
            As `release`. Raises `StoreUnavailable`.
        """
        holder = self.get(name)
        if holder is not None and holder.token == token:
            # Before the release: the next holder may be a redelivery, which looks for the note.
            self.set_note(note)
        return self.release(name, token, proof)

    def reserve(
        self,
        key: str,
        text: str,
        ttl: float,
        *,
        over: str = "",
        unless_held: str | None = None,
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
            text, or what holds the lock ``unless_held``. Raises `StoreUnavailable`.
        """
        name = _name_of(key)
        if unless_held is not None and (lock := self.get(unless_held)) is not None:
            there = self.get_note(key)
            if there != text:
                return lock if there in (None, over) else there
        for _ in range(NOTE_ATTEMPTS):
            holder = self._keep(name, text, ttl)
            if holder is None:
                return None
            there = _text_of(holder)
            if there not in (None, over):
                return there
            self.clear(name, holder.token)
        raise StoreUnavailable(self.alias, "a reservation could not be written over another one")

    def unreserve(self, key: str, text: str) -> bool:
        """End a reservation.

        Args:
            key: of the reservation.
            text: end it only if it is for this text.

        Returns:
            False if the key is not, or no longer, reserved for the text. Raises
            `StoreUnavailable`.
        """
        return self.release(_name_of(key), _token_of(text))

    def _keep(self, name: str, text: str, ttl: float) -> LockInfo | None:
        """Keep the text under the name; returns what is there instead."""
        answer = self.acquire(name, _token_of(text), ttl, _owner_of(text))
        return answer.holder if isinstance(answer, Refusal) else None


def _name_of(key: str) -> str:
    digest = sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{NAME_PREFIX}{digest[:40]}"


def _token_of(text: str) -> str:
    """The same token for the same text: to acquire it again is idempotent."""
    digest = sha256(text.encode("utf-8", "surrogateescape")).digest()
    return urlsafe_b64encode(digest)[:TOKEN_CHARACTERS].decode("ascii")


def _owner_of(text: str) -> dict[str, str]:
    escaped = text.encode("unicode_escape").decode("ascii")
    size = LONGEST_TEXT_BYTES
    pieces = [escaped[at : at + size] for at in range(0, len(escaped), size)]
    if len(pieces) > len(TEXT_FIELDS):
        raise ValueError(
            f"this store keeps texts of {len(TEXT_FIELDS) * size} characters at most, "
            f"not of {len(escaped)}"
        )
    return dict(zip(TEXT_FIELDS, pieces, strict=False))


def _text_of(holder: LockInfo) -> str | None:
    """The text that a lease carries; None for a key that somebody else set."""
    pieces = [getattr(holder.owner, field) for field in TEXT_FIELDS]
    try:
        text = "".join([piece for piece in pieces if piece is not None])
        text = text.encode("ascii").decode("unicode_escape")
    except (TypeError, ValueError):
        return None
    # Only then was it written here.
    return text if holder.token == _token_of(text) else None
