"""The verbs of every store, which are made of its three methods.

A store overrides a verb for speed alone. What it must have is in ``contract.py``.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from .._values.arguments import base_of
from .._values.lock_info import LockInfo, kept_key
from .._values.owner import Owner
from .._values.tokens import new_token
from ..exceptions import InvalidLockConfig, StoreUnavailable
from . import records
from .contract import ATTEMPTS, CannotSubscribe, Contract, Finding, Grant, Question, Refusal, Waiter
from .records import ANY, FREE, KEEP, Change, Done, Entry, Foreign, Held, Note, Record

__all__ = [
    "BaseStore", "CannotSubscribe", "Extension", "Finding", "Grant", "Note", "Owner", "Question",
    "Refusal", "Reserved", "Waiter",
]  # fmt: skip

# How many locks are granted in one step: servers bound the size of a script's call, of a statement,
# and of a transaction.
MOST_TOGETHER = 500
# The ttl of a lease that only tries whether there are any: longer than its release may be late.
TRIED_SECONDS = 10.0


class Extension(NamedTuple):
    """One lease of a batch to extend; ``ttl``: seconds from now."""

    name: str
    token: str
    ttl: float


class Reserved(NamedTuple):
    """A reservation: the key is reserved for the text. ``ttl``: seconds left; None: it never
    ends."""

    key: str
    text: str
    ttl: float | None


class BaseStore(Contract):
    """Where locks live: what every store is a subclass of.

    It makes the verbs, and a subclass the three methods: see ``stores/contract.py``. Every method
    raises `StoreUnavailable` when the server does not answer, and nothing else for whatever its
    server or client did.
    """

    # Locks.

    def acquire(
        self, names: Sequence[str], token: str, ttl: float, owner: Record, note: Note | None = None
    ) -> Grant | Refusal:
        """Grant the first of some locks that is free; mostly there is one name.

        The lock whose permits they are is their gate: while anything holds it, no new permit is
        granted, and the refusal names what holds it.

        Idempotent for one token: a client that asks again after a lost reply is granted the same
        lock again, and the lease then ends ``ttl`` seconds after this call.

        Args:
            names: the lock, or the permits of one name.
            token: identifies the lease.
            ttl: seconds from now until the lease ends by itself.
            owner: the fields of `Owner`, JSON-able.
            note: written with the lease, unless its key has another text.
        """
        record, base = records.new_record(token, owner), base_of(names[0], owner.get("slots"))
        gate = [] if base == names[0] else [Change(base, FREE, KEEP)]
        for _ in range(ATTEMPTS):
            # Of several, the one that this token has got already, or those that are free.
            found = self.get([*names, base]) if gate else []
            holders = [entry for entry in found if entry is not None]
            taken = {entry.name for entry in holders}
            own = [entry.name for entry in holders if entry.token == token]
            if base in taken and not own:
                return self.refused(holders[-1:])
            for name in own or [each for each in names if each not in taken]:
                changes = [Change(name, FREE, record, ttl), *gate]
                if own:  # It goes on, whatever holds the gate; one that is over does not.
                    changes = [Change(name, Held(token), KEEP, ttl)]
                done, noted = self._put_lease(token, changes, note)
                entry = done.entries[0]
                if done.made:  # Without an entry, the lease is over already.
                    return self.granted(entry or Entry(name, record, 0.0), noted=noted)
                if any(done.entries[1 : len(changes)]):
                    holders.clear()
                    break  # The gate is closed now; but this token may have the permit.
                if entry is not None:
                    holders.append(entry)
            if holders:
                return self.refused(holders)
        raise StoreUnavailable(self.alias, f"{names[0]} changes hands too fast")

    def _put_lease(
        self, token: str, changes: Sequence[Change], note: Note | None
    ) -> tuple[Done, bool]:
        """Put a lease on its conditions, and the note unless its key has another text. Returns
        whether the note is there."""
        if note is not None:
            done = self.put([*changes, records.noting(note, FREE)])
            entry = done.entries[0]
            if done.made or (entry is not None and entry.token != token):
                return done, done.made
        return self.put(changes), False

    def acquire_all(
        self, tokens: Mapping[str, str], ttl: float, owner: Record
    ) -> builtins.list[Grant] | Refusal | None:
        """Grant several locks in one step, all or none.

        Args:
            tokens: the tokens by the locks' names.
            ttl, owner: as for `acquire`.

        Returns:
            A `Grant` for each, in their order, or what holds some of them. None: the store cannot
            do that, or not for so many, and the caller takes one after the other.
        """
        if not self.puts_together or len(tokens) > MOST_TOGETHER:
            return None
        new = {name: records.new_record(token, owner) for name, token in tokens.items()}
        done = self.put([Change(name, FREE, record, ttl) for name, record in new.items()])
        there = [entry for entry in done.entries if entry is not None]
        if done.made:
            return [self.granted(entry) for entry in there]
        return self.refused(entry for entry in there if entry.token != tokens[entry.name])

    def granted(self, entry: Entry, *, noted: bool = False) -> Grant:
        """The grant of the lease that is there now."""
        return Grant(entry.name, entry.fence, noted)

    def refused(self, holders: Iterable[Entry]) -> Refusal:
        """The refusal by those who hold the locks."""
        return Refusal(tuple(map(self.info, holders)))

    def extend(self, name: str, token: str, ttl: float) -> bool:
        """Make a lease end ``ttl`` seconds from now, sooner or later than before.

        Returns False if this lease no longer holds the lock.
        """
        return self.put([Change(name, Held(token), KEEP, ttl)]).made

    def extend_many(self, batch: Sequence[Extension]) -> Sequence[bool | None]:
        """`extend` for each lease of a batch; None: nothing is known of this one.

        Called from the store's renewal thread only.
        """
        return [self.extend(*extension) for extension in batch]

    def release(self, name: str, token: str, note: Note | None = None) -> bool:
        """End a lease, and write a note in the same step if it still held the lock.

        Returns False if it no longer did; nothing was changed then.
        """
        change = Change(name, Held(token), None)
        if note is None:
            return self.put([change]).made
        if self.puts_together:
            return self.put([change, records.noting(note, ANY)]).made
        # The note first: the next holder may be a redelivery, which looks for it.
        entry = self.get([name])[0]
        if entry is not None and entry.token == token:
            self.set_note(note)
        return self.release(name, token)

    def rewrite(
        self, name: str, held: Held, ttl: float, owner: Record, version: str
    ) -> Grant | None:
        """Replace the owner of a lease, and make it end ``ttl`` seconds from now, in one step.

        Idempotent for one ``version``. The fence stays.

        Args:
            name: the lock.
            held: the lease; with a version, only if it is that one now.
            ttl: seconds.
            owner: as for `acquire`.
            version: of the new record, another one than that of the record there now.

        Returns:
            None if this lease, or this version of it, no longer holds the lock; nothing was changed
            then.
        """
        record = records.new_record(held.token, owner, version)
        done = self.put([Change(name, held, record, ttl)])
        entry = done.entries[0]
        return self.granted(entry) if done.made and entry is not None else None

    def clear(self, name: str, token: str | None = None, digest: str | None = None) -> bool:
        """Remove what holds a lock, other code's key included.

        Args:
            name: the lock.
            token: remove only this lease.
            digest: remove only this value of other code. Without both: whatever holds the lock.

        Returns:
            False if there was nothing, or the store leaves what is there to its end: without
            ``atomic_release`` it does not remove a lease that is about to end.
        """
        if token is not None or digest is not None:
            there = Foreign(digest or "") if token is None else Held(token)
            return self.put([Change(name, there, None)]).made
        left = None
        for _ in range(ATTEMPTS):
            entry = self.get([name])[0]
            if entry is None:
                return False
            if entry.itself == left:
                return False  # The store leaves it to its end.
            if self.put([Change(name, entry.itself, None)]).made:
                return True
            left = entry.itself
        raise StoreUnavailable(self.alias, f"{name} changes hands too fast to be cleared")

    def find(self, name: str) -> LockInfo | None:
        """What holds a lock, other code's key included; None: nothing."""
        return self.find_many([name])[0]

    def find_many(self, names: Sequence[str]) -> builtins.list[LockInfo | None]:
        """`find`, for each of some locks."""
        return [None if entry is None else self.info(entry) for entry in self.get(names)]

    def find_lease(
        self, names: Sequence[str], is_it: Callable[[LockInfo], bool]
    ) -> LockInfo | None:
        """The lease under one of the ``names`` of which ``is_it`` says that it is the one that was
        seen; None if there is none.

        Where the keys depend on the thread (tenants), it may have another key than this thread
        makes: it is looked for among all locks of these names.
        """
        for holder in self.find_many(names):
            if holder is not None and is_it(holder):
                return holder
        for name in names:
            if kept_key(name) is None and kept_key(self.keyed(name)) is not None:
                for info in self.walk(name):
                    if info.name == name and is_it(info):
                        return info
        return None

    def walk(self, prefix: str = "") -> Iterator[LockInfo]:
        """All live locks whose names begin with ``prefix``, the soonest to end first.

        Raises `ListingNotSupported`.
        """
        return map(self.info, self.list(prefix))

    def page(
        self, prefix: str = "", limit: int | None = None, offset: int = 0
    ) -> builtins.list[LockInfo]:
        """`walk`, without the first ``offset``, and at most ``limit`` of them; None: all."""
        return [*islice(self.walk(prefix), offset, None if limit is None else offset + limit)]

    def count(self, prefix: str = "") -> int:
        """How many live locks have names that begin with ``prefix``.

        Raises `ListingNotSupported`.
        """
        return sum(1 for _ in self.list(prefix))

    def cannot_write(self, near: str = "") -> str:
        """Why no lock is to be had, as the server says it: one that is full, or a replica, may
        answer every question. "": it grants one.

        It takes a lease that no list shows, and releases it. ``near``: the lock that it is about:
        in a cluster its node is asked.
        """
        # As that of a note: no lock's name has a space.
        name, token = f" tried {near}", new_token()
        try:
            # A refusal is good too: somebody else has just written it.
            self.acquire([name], token, TRIED_SECONDS, {})
            self.release(name, token)
        except (StoreUnavailable, InvalidLockConfig) as error:
            return getattr(error, "reason", str(error))
        return ""

    def check(self) -> Iterable[Finding]:
        yield from super().check()
        if reason := self.cannot_write():
            mend = "Do what the message says. Until then each acquire raises StoreUnavailable."
            yield Finding("write", True, f"no lock can be acquired: {reason}", mend)

    # Notes and reservations, texts under keys of their own: by notes tasks recognise a redelivery,
    # by reservations they keep duplicates out of the queue.

    def keyed_note(self, key: str) -> str:
        """`keyed`, for the key of a note or a reservation."""
        return self.keyed(records.note_name(key))

    def get_note(self, key: str) -> str | None:
        """The text of a note or a reservation; None: there is none."""
        entry = self.get([records.note_name(key)])[0]
        return None if entry is None else entry.text

    def set_note(self, note: Note) -> None:
        """Write a note, over the note or the reservation that may be there; with an empty text,
        remove it."""
        self.put([records.noting(note, ANY)])

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
            entry = self.get([records.note_name(key)])[0]
            text = None if entry is None else entry.text
            new = change(text)
            if new is None:
                return text
            expect = FREE if entry is None else entry.itself
            if self.put([records.noting(Note(key, new, ttl), expect)]).made:
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
            done = self.put([*free, records.noting(note, expect)])
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
        expect = ANY if text is None else Held(records.note_record(text)["token"])
        return self.put([Change(records.note_name(key), expect, None)]).made

    def reservations(self) -> Iterator[Reserved]:
        """Live reservations whose keys begin with `LISTED_KEY_PREFIX`, the soonest to end first.

        Raises `ListingNotSupported`.
        """
        for entry in self.list(records.LISTED):
            if entry.record is not None and entry.text is not None:
                key = entry.record.get("key", str(entry.name)[1:])
                yield Reserved(key, entry.text, entry.left)
