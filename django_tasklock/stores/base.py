"""The contract that every store keeps: three methods, and the verbs that are made of them.

A store implements `BaseStore.put`, `BaseStore.get` and `BaseStore.list`. It overrides a verb for
speed alone, or to have a wait queue or a history. ``docs/howto/store-of-your-own.md`` shows one;
`django_tasklock.testing.StoreContract` tests one.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from .._values.event import Event
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from ..conf import StoreSettings
from ..exceptions import ListingNotSupported, StoreUnavailable
from .records import (
    ANY,
    FREE,
    KEEP,
    LISTED,
    Change,
    Done,
    Entry,
    Foreign,
    Held,
    info_of,
    new_record,
    note_name,
    note_record,
    text_of_note,
    undoing,
)

# How often a note, or a value that is cleared, is looked at anew where others change it meanwhile.
ATTEMPTS = 100
# How many locks are granted in one step: servers bound the size of a script's call, of a statement,
# and of a transaction.
MOST_TOGETHER = 500


# Changes that are made together: by what, and their places among all.
Part: TypeAlias = tuple[Callable[[Sequence[Change]], Done], Sequence[int]]


class Note(NamedTuple):
    """A text that a store keeps under a key for some time, to recognise redeliveries."""

    key: str
    """any text; it never meets a lock's name"""
    text: str
    """an empty text means that there is no note: the store removes the one that is there"""
    ttl: float
    """seconds for which the note is kept"""


class Question(NamedTuple):
    """The arguments of `BaseStore.acquire`, which says what they mean."""

    names: Sequence[str]
    token: str
    ttl: float
    owner: Mapping[str, Any]
    note: Note | None = None


class Grant(NamedTuple):
    """The lock was granted."""

    name: str
    """which one, of several that were asked for"""
    fence: int | None = None
    """the number of the lease, greater than that of every earlier lease of the lock; None on a
    store without fences"""
    noted: bool = False
    """whether the note was written in the same step, or was there already"""
    left: Callable[[], float] | None = None
    """returns the seconds that are left by a clock of the store's own, which this process can read:
    the lease is over as soon as either clock says so. None: only `clock.now` counts"""


class Refusal(NamedTuple):
    """None of the locks that were asked for is free."""

    holders: tuple[LockInfo, ...]
    """what holds them; at least one"""

    @property
    def holder(self) -> LockInfo:
        """The one that ends first."""
        return min(self.holders, key=lambda info: float("inf") if info.ttl is None else info.ttl)


class Extension(NamedTuple):
    """One lease of a batch to extend."""

    name: str
    token: str
    ttl: float
    """seconds from now"""


class Reserved(NamedTuple):
    """A reservation: the key is reserved for the text."""

    key: str
    text: str
    ttl: float | None
    """seconds left; None: it never ends"""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the live server that an operator should know, from `BaseStore.check`."""

    id: str
    """a stable word, such as "eviction\""""
    serious: bool
    """whether locks may be lost, or held by two at once"""
    message: str
    """what is wrong, as the rest of a sentence that begins with the store; without a full stop"""
    hint: str = ""
    """what to do, in sentences; may be empty"""


class CannotSubscribe(Exception):
    """No connection is available to subscribe on at the moment: the caller polls instead."""


class Waiter(Protocol):
    """One caller that waits for a lock, or for one of several, and its entry in the wait queue."""

    ahead: int
    """how many were before it in the queue when it asked last; 0 if it was told since that it is
    the next. The next one looks at once whether a holder has died, the others now and then"""

    @property
    def ready(self) -> bool:
        """Whether `ask` can join the wait queue without a round trip of its own before it."""

    def ask(self) -> Grant | Refusal:
        """Ask for the lock. If it is held, join the wait queue, or keep the position there.

        Raises `CannotSubscribe` and `StoreUnavailable`.
        """

    def wait(self, seconds: float) -> Grant | Refusal | None:
        """Wait until the lock is handed over to this waiter, at most ``seconds``.

        Returns the grant, whose lease ends its ttl after the last `ask`; a `Refusal` when the lock
        was handed to another waiter, which is the holder now; None when nothing happened. It may
        return early; `cut` then says whether to ask again. Raises `StoreUnavailable`.
        """

    def wake_by(self, wake: Callable[[], None]) -> float:
        """Have ``wake`` called, in any thread, when ``wait(0)`` may return something, or `cut` has
        become true: also at once, if it may now, and also for nothing. For event loops.

        It is called after `ask`, and again after each ``wait(0)`` that returned None. ``wake``
        returns at once and raises nothing. Returns the seconds after which to call ``wait(0)`` even
        if nobody was woken; infinity, if that is never needed.
        """

    @property
    def cut(self) -> bool:
        """Whether the connection was cut, so that no hand-over reaches this waiter."""

    def leave(self) -> Grant | None:
        """Leave the wait queue. Returns the grant if the lock was handed over just before.

        Raises `StoreUnavailable`.
        """

    def quit(self) -> None:
        """`leave`, for a caller that is about to raise an exception: returns and raises nothing."""


class BaseStore(ABC):
    """Where locks live. All threads of a process share one store.

    A store only stores: waiting, signals, logs and renewal belong to the service. Every method
    raises `StoreUnavailable` when the server does not answer, and nothing else for whatever its
    server or client did. Names, tokens, ttls (seconds) and owners were checked before.
    """

    atomic_release: ClassVar[bool] = True
    """a change compares and writes in one step on the server"""
    puts_together: ClassVar[bool] = True
    """so do several changes of one `put`. Otherwise they are made one after the other"""
    supports_listing: ClassVar[bool] = True
    """`list` works"""
    supports_fence: ClassVar[bool] = True
    """a new lease has a number, greater than that of every earlier lease of its lock"""
    fences_are_times: ClassVar[bool] = False
    """they are microseconds since the epoch, by the server's clock, or a little more"""
    supports_waiting: ClassVar[bool] = False
    """`waiter` returns a `Waiter`, which is handed the lock without polling"""
    supports_history: bool = False
    """`record` and `events` work; False also where the settings have turned the history off"""
    uses_cache: ClassVar[bool] = False
    """the locks are keys of the cache that CACHE names; the system checks look at that cache"""
    known_options: ClassVar[frozenset[str]] = frozenset({"TAKEOVER"})
    """the keys that OPTIONS may have, beside those of the base classes"""
    longest_ttl: float | None = None
    """the longest ttl that a lease can have, in seconds. None if there is no limit"""

    def __init__(self, settings: StoreSettings) -> None:
        """Make the store of one alias.

        Args:
            settings: of the alias, from the setting TASKLOCK.

        Raises `InvalidLockConfig` for an unknown option, and for a wrong value of one.
        """
        self.settings = settings
        self.alias = settings.alias
        own = (vars(each).get("known_options", ()) for each in type(self).__mro__)
        known: set[str] = set().union(*own)
        unknown = sorted(set(settings.options) - known)
        if unknown:
            raise settings.wrong(
                f"it has no option {', '.join(unknown)}; there are {', '.join(sorted(known))}"
            )
        self.takeover: bool = settings.option(
            "TAKEOVER", True, lambda given: isinstance(given, bool), "a bool"
        )
        """Whether a lock whose owner is known to be dead is taken at once. Off for work that
        leaves subprocesses behind."""

    # The three methods of a store.

    @abstractmethod
    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        """Make all changes, or none; each is of another name.

        Args:
            changes: see `Change`.
            least_fence: the fence of each lease that is written, or found to be there already, is
                made this number if it is smaller. For `QuorumStore`, whose members have several
                clocks. A store without ``fences_are_times`` ignores it, and is no member.

        Returns:
            Whether they were made, and what is there now.
        """

    def put_in_turn(self, changes: Sequence[Change], parts: Iterable[Part]) -> Done:
        """`put`, part by part, for a store that does not put all together."""
        found: dict[int, Entry | None] = {}
        # First what is looked at and stays: a refusal there leaves nothing to undo.
        for put, places in sorted(parts, key=lambda part: changes[part[1][0]].record != KEEP):
            done = put([changes[place] for place in places])
            if not done.made:
                for undo in undoing(changes[place] for place in found):
                    self.put([undo])
                names = [change.name for change in changes]
                return done if len(places) == len(names) else Done(False, self.get(names))
            found |= zip(places, done.entries, strict=True)
        return Done(True, [found[place] for place in range(len(changes))])

    @abstractmethod
    def get(self, names: Sequence[str]) -> builtins.list[Entry | None]:
        """What is under each of some names; None: nothing."""

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """What is under the names that begin with ``prefix``, each once, the soonest to end first.

        Without a space at its beginning these are locks, and no notes. Of notes, those whose names
        begin with `LISTED` can be listed. Other code's keys need not be found.

        Raises `ListingNotSupported`.
        """
        raise ListingNotSupported(self.alias)

    # What a store may have beside these.

    def waiter(
        self,
        names: Sequence[str],
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        note: Note | None = None,
    ) -> Waiter | None:
        """A waiter, for the arguments of `acquire`. It is not in the wait queue before it asks.

        The permits of one name have one queue. None: this store has no wait queues.
        """
        return None

    def waiters(self, name: str, limit: int = 100) -> builtins.list[Owner]:
        """Who is in the wait queue of a lock, or of the permits of ``name``; the next one first.

        Each owner has ``waiting_since`` where the store knows it.
        """
        return []

    def record(self, events: Sequence[Event]) -> None:
        """Keep some events, the oldest first, and forget the oldest of all beyond a limit.

        Called from a thread that nobody waits for. What it raises is dropped with the events.
        """
        raise NotImplementedError(f"the store {type(self).__name__} does not implement record()")

    def events(
        self, name: str | None = None, task_id: str | None = None, limit: int = 100
    ) -> builtins.list[Event]:
        """The events that are kept, the last one that was recorded first.

        Args:
            name: only those of this lock and of its permits; None: of all locks.
            task_id: only those whose owner is the task with this id; None: of all owners.
            limit: how many to return at most.

        Raises `ListingNotSupported`.
        """
        raise ListingNotSupported(self.alias, "keep a history of its locks")

    def endless(self, prefix: str = "") -> Iterator[LockInfo]:
        """Every key that is a lock and never expires, other code's included, in no order.

        Raises `ListingNotSupported`.
        """
        return (info for info in self.walk(prefix) if info.ttl is None)

    def check(self) -> Iterable[Finding]:
        """What is wrong with the live server, for ``check --deploy`` and the doctor.

        Raises `StoreUnavailable` if it does not answer.
        """
        self.get(["check"])
        return ()

    def uptime(self) -> float | None:
        """For how many seconds the server has been up, if it may forget leases in a restart.

        `QuorumStore` asks right after a grant, and does not count a member that was restarted
        lately. As a restart cuts all connections, it is enough to look at each new one. None: the
        server forgets no lease.
        """
        return None

    def close_idle(self) -> None:  # noqa: B027  Most stores have nothing to close.
        """Close the connections that no call uses now. Later calls connect again.

        Called when the settings have changed, as in tests: soon nobody refers to this store.
        """

    def keyed(self, name: str) -> str:
        """The name, with whatever this thread must say so that all others find the same lock.

        The service calls it once for a lease, in the thread that asks for it, and gives the result
        to every later call about it. It is for stores whose physical keys depend on the thread, as
        with a KEY_FUNCTION for tenants. Returns a `str` that is equal to ``name``; for what this
        method has returned, that. Asks no server.
        """
        return name

    def key(self, name: str) -> str:
        """What the store calls a lock."""
        prefix = self.settings.key_prefix
        return f"{prefix}:{name}" if prefix else name

    # The verbs.

    def acquire(
        self,
        names: Sequence[str],
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        note: Note | None = None,
    ) -> Grant | Refusal:
        """Grant the first of some locks that is free; mostly there is one name.

        Idempotent for one token: a client that asks again after a lost reply is granted the same
        lock again, and the lease then ends ``ttl`` seconds after this call.

        Args:
            names: the lock, or the permits of one name.
            token: identifies the lease.
            ttl: seconds from now until the lease ends by itself.
            owner: the fields of `Owner`, JSON-able.
            note: written with the lease, unless its key has another text.
        """
        record = new_record(token, owner)
        noted = None if note is None else self._noting(note, FREE)
        for _ in range(ATTEMPTS):
            there = self.get(names) if len(names) > 1 else [None]
            mine = [entry.name for entry in there if entry is not None and entry.token == token]
            free = [name for name, entry in zip(names, there, strict=True) if entry is None]
            holders = [entry for entry in there if entry is not None]
            for name in mine or free:
                lock, written = Change(name, FREE, record, ttl), noted is not None
                done = self.put([lock] if noted is None else [lock, noted])
                if written and not done.made and done.entries[0] is None:
                    done, written = self.put([lock]), False  # The note's key has another text.
                entry = done.entries[0]
                if done.made:  # Without an entry, the lease is over already.
                    return self.granted(entry or Entry(name, record, 0.0), noted=written)
                if entry is not None:
                    holders.append(entry)
            if holders:
                return Refusal(tuple(map(self.info, holders)))
        raise StoreUnavailable(self.alias, f"{names[0]} changes hands too fast")

    def acquire_all(
        self, tokens: Mapping[str, str], ttl: float, owner: Mapping[str, Any]
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
        records = {name: new_record(token, owner) for name, token in tokens.items()}
        done = self.put([Change(name, FREE, record, ttl) for name, record in records.items()])
        if done.made:
            return [self.granted(entry) for entry in done.entries if entry is not None]
        return Refusal(tuple(
            self.info(entry)
            for entry, token in zip(done.entries, tokens.values(), strict=True)
            if entry is not None and entry.token != token
        ))  # fmt: skip

    def granted(self, entry: Entry, *, noted: bool = False) -> Grant:
        """The grant of the lease that is there now."""
        return Grant(entry.name, entry.fence, noted)

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
            return self.put([change, self._noting(note, ANY)]).made
        # The note first: the next holder may be a redelivery, which looks for it.
        entry = self.get([name])[0]
        if entry is not None and entry.token == token:
            self.set_note(note)
        return self.release(name, token)

    def rewrite(
        self, name: str, held: Held, ttl: float, owner: Mapping[str, Any], version: str
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
        record = new_record(held.token, owner, version)
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
            shown = Foreign(digest or "") if token is None else Held(token)
            return self.put([Change(name, shown, None)]).made
        left: Held | Foreign | None = None
        for _ in range(ATTEMPTS):
            entry = self.get([name])[0]
            if entry is None or (there := _shown(entry)) == left:
                return False
            if self.put([Change(name, there, None)]).made:
                return True
            left = there
        raise StoreUnavailable(self.alias, f"{name} changes hands too fast to be cleared")

    def info(self, entry: Entry) -> LockInfo:
        """What there is to know of a lock that was found."""
        return info_of(entry, self.alias, self.key(entry.name))

    def find(self, name: str) -> LockInfo | None:
        """What holds a lock, other code's key included; None: nothing."""
        return self.find_many([name])[0]

    def find_many(self, names: Sequence[str]) -> builtins.list[LockInfo | None]:
        """`find`, for each of some locks."""
        return [None if entry is None else self.info(entry) for entry in self.get(names)]

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

    # Notes and reservations: records under names with a space, which no lock has.

    def keyed_note(self, key: str) -> str:
        """`keyed`, for the key of a note or a reservation."""
        return self.keyed(note_name(key))

    def get_note(self, key: str) -> str | None:
        """The text of a note or a reservation; None: there is none."""
        return text_of_note(self.get([note_name(key)])[0])

    def set_note(self, note: Note) -> None:
        """Write a note, over the note or the reservation that may be there; with an empty text,
        remove it."""
        self.put([self._noting(note, ANY)])

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
            text, or what holds the lock ``unless_held``.
        """
        note = Note(key, text, ttl)
        expect: str | Held | Foreign = FREE
        free = [] if unless_held is None else [Change(unless_held, FREE, KEEP)]
        for _ in range(ATTEMPTS):
            done = self.put([self._noting(note, expect), *free])
            if done.made:
                return None
            entry = done.entries[0]
            there = text_of_note(entry)
            if there == text:
                free = []  # It is reserved already, held or not.
            elif there is not None and there != over:
                return there
            elif len(done.entries) > 1 and (lock := done.entries[1]):
                return self.info(lock)
            # Nothing, a text that counts as none, or a value that nobody should write there.
            expect = FREE if entry is None else _shown(entry)
        raise StoreUnavailable(self.alias, "a reservation could not be written over another one")

    def unreserve(self, key: str, text: str) -> bool:
        """End a reservation, or remove a note, if it has this text. Returns False if it has not."""
        return self.put([Change(note_name(key), Held(note_record(text)["token"]), None)]).made

    def reservations(self) -> Iterator[Reserved]:
        """Live reservations whose keys begin with `LISTED_KEY_PREFIX`, the soonest to end first.

        Raises `ListingNotSupported`.
        """
        for entry in self.list(LISTED):
            text = text_of_note(entry)
            if text is not None and entry.record is not None:
                yield Reserved(entry.record.get("key", str(entry.name)[1:]), text, entry.left)

    def _noting(self, note: Note, expect: str | Held | Foreign) -> Change:
        record = note_record(note.text, note.key) if note.text else None
        return Change(note_name(note.key), expect, record, note.ttl if note.text else None)


def _shown(entry: Entry) -> Held | Foreign:
    return Foreign(entry.digest or "") if entry.token is None else Held(entry.token)
