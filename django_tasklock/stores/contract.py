"""What a store's author writes: three methods, and what a store may have beside them.

A caller asks for a lock by a `Question`; who is refused may wait by a `Waiter`.

`Contract.put`, `Contract.get` and `Contract.list` are the three; the values that they take and
return are in ``records.py``. A store is a subclass of `BaseStore`, which makes every verb of them.
``docs/howto/store-of-your-own.md`` shows one; `django_tasklock.testing.StoreContract` tests one.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

from .._values.lock_info import Event, LockInfo
from .._values.owner import Owner
from ..conf import StoreSettings
from ..exceptions import ListingNotSupported
from .records import Change, Done, Entry, Note, Record, info_of, undoing

# How often what is under a name is looked at anew, where others change it meanwhile.
ATTEMPTS = 100

# Changes that are made together: by what, and their places among all.
Part: TypeAlias = tuple[Callable[[Sequence[Change]], Done], Sequence[int]]


class Question(NamedTuple):
    """The arguments of `BaseStore.acquire`, which says what they mean."""

    names: Sequence[str]
    token: str
    ttl: float
    owner: Record
    note: Note | None = None


class Grant(NamedTuple):
    """The lock was granted.

    Attributes:
        name: which one, of several that were asked for.
        fence: the number of the lease, greater than that of every earlier lease of the lock. None
            on a store without fences.
        noted: whether the note was written in the same step, or was there already.
        left: returns the seconds that are left by a clock of the store's own, which this process
            can read: the lease is over as soon as either clock says so. None: only `clock.now`
            counts.
    """

    name: str
    fence: int | None = None
    noted: bool = False
    left: Callable[[], float] | None = None


class Refusal(NamedTuple):
    """None of the locks that were asked for is free: ``holders`` hold them, at least one."""

    holders: tuple[LockInfo, ...]

    @property
    def holder(self) -> LockInfo:
        """The one that ends first."""
        return min(self.holders, key=lambda info: float("inf") if info.ttl is None else info.ttl)


class CannotSubscribe(Exception):
    """No connection is available to subscribe on at the moment: the caller polls instead."""


class Waiter(Protocol):
    """One caller that waits for a lock, or for one of several, and its entry in the wait queue."""

    #: how many were before it in the queue when it asked last; 0 if it was told since that it is
    #: the next. The next one looks at once whether a holder has died, the others now and then
    ahead: int

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


class Finding(NamedTuple):
    """Something about the live server that an operator should know, from `BaseStore.check`.

    Attributes:
        id: a stable word, such as "eviction".
        serious: whether locks may be lost, or held by two at once.
        message: what is wrong, as the rest of a sentence that begins with the store; without a full
            stop.
        hint: what to do, in sentences; may be empty.
    """

    id: str
    serious: bool
    message: str
    hint: str = ""


class Contract(ABC):
    """What a store must have, and what it may have.

    All threads of a process share one store. It only stores: waiting, signals, logs and renewal
    belong to the service. Every method raises `StoreUnavailable` when the server does not answer,
    and nothing else for whatever its server or client did. Names, tokens, ttls (seconds) and owners
    were checked before.
    """

    #: a change compares and writes in one step on the server
    atomic_release: ClassVar[bool] = True
    #: so do several changes of one `put`. Otherwise they are made in their order, and those that
    #: were made are undone if a later one cannot be
    puts_together: ClassVar[bool] = True
    #: `list` works
    supports_listing: ClassVar[bool] = True
    #: a new lease has a number, greater than that of every earlier lease of its lock
    supports_fence: ClassVar[bool] = True
    #: they are microseconds since the epoch, by the server's clock, or a little more
    fences_are_times: ClassVar[bool] = False
    #: `waiter` returns a `Waiter`, which is handed the lock without polling
    supports_waiting: ClassVar[bool] = False
    #: `record` and `events` work; False also where the settings have turned the history off
    supports_history: bool = False
    #: the locks are keys of the cache that CACHE names; the system checks look at that cache
    uses_cache: ClassVar[bool] = False
    #: the keys that OPTIONS may have, beside those of the base classes
    known_options: ClassVar[frozenset[str]] = frozenset({"TAKEOVER"})
    #: the longest ttl that a lease can have, in seconds. None if there is no limit
    longest_ttl: float | None = None

    def __init__(self, settings: StoreSettings) -> None:
        """Make the store of one alias.

        Args:
            settings: of the alias, from the setting TASKLOCK.

        Raises `InvalidLockConfig` for an unknown option, and for a wrong value of one.
        """
        self.settings = settings
        self.alias = settings.alias
        known: set[str] = set()
        for each in type(self).__mro__:
            known |= vars(each).get("known_options", frozenset())
        if unknown := sorted(settings.options.keys() - known):
            raise settings.wrong(
                f"it has no option {', '.join(unknown)}; there are {', '.join(sorted(known))}"
            )
        #: Whether a lock whose owner is known to be dead is taken at once. Off for work that
        #: leaves subprocesses behind.
        self.takeover: bool = settings.option(
            "TAKEOVER", True, lambda given: isinstance(given, bool), "a bool"
        )

    # The three methods of a store.

    @abstractmethod
    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        """Make all changes, or none; each is of another name.

        Args:
            changes: see `Change`. `fits` says whether one can be made, `after` what is there then.
            least_fence: the fence of each lease that is written, or found to be there already, is
                made this number if it is smaller. For `QuorumStore`, whose members have several
                clocks. A store without ``fences_are_times`` ignores it, and is no member.

        Returns:
            Whether they were made, and what is there now.
        """

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

    def may_have_given(self, name: str, fence: int | None) -> bool:
        """Whether a lease of this lock can have had the fence, None: any; also where that is not
        known."""
        return True

    def waiter(self, question: Question) -> Waiter | None:
        """A waiter that asks this. It is not in the wait queue before it asks.

        The permits of one name have one queue. None: this store has no wait queues.
        """
        return None

    def waiters(self, name: str, limit: int = 100) -> builtins.list[Owner]:
        """Who is in the wait queue of a lock, or of the permits of ``name``; the next one first.

        Each owner has ``waiting_since`` where the store knows it.
        """
        return []

    def record(self, events: Sequence[Event]) -> None:
        """Keep some events, the oldest first, and forget the oldest beyond a limit: of those whose
        kind is ``RARE``, and of the others.

        Called from a thread that nobody waits for. What it raises is dropped with the events.
        """
        raise NotImplementedError(f"the store {type(self).__name__} does not implement record()")

    def events(
        self, name: str | None = None, task_id: str | None = None, limit: int = 100
    ) -> builtins.list[Event]:
        """The events that are kept, the newest first.

        Args:
            name: only those of this lock and of its permits; None: of all locks.
            task_id: only those whose owner is the task with this id; None: of all owners.
            limit: how many to return at most.

        Raises `ListingNotSupported`.
        """
        raise ListingNotSupported(self.alias, "keep a history of its locks")

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

    def check_lasts(
        self, what: str, seconds: float, error: Callable[[str], Exception] = ValueError
    ) -> None:
        """Raise an ``error`` if no lease lasts for so many seconds here."""
        if self.longest_ttl is not None and seconds > self.longest_ttl:
            raise error(
                f"{what} must be at most {self.longest_ttl:g} s (LONGEST_TTL of the lock store "
                f"{self.alias!r}), not {seconds:g} s"
            )

    def info(self, entry: Entry) -> LockInfo:
        """What there is to know of a lock that was found."""
        return info_of(entry, self.alias, self.key(entry.name))

    def put_in_turn(self, changes: Sequence[Change], parts: Iterable[Part]) -> Done:
        """`put`, part by part in their order, for a store that does not put all together."""
        found: dict[int, Entry | None] = {}
        for put, places in parts:
            done = put([changes[place] for place in places])
            if not done.made:
                for undo in undoing(changes[place] for place in found):
                    self.put([undo])
                names = [change.name for change in changes]
                return done if len(places) == len(names) else Done(False, self.get(names))
            found |= zip(places, done.entries, strict=True)
        return Done(True, [found[place] for place in range(len(changes))])
