"""Locks in ZooKeeper: one persistent node for each, which ends by the leader's clock.

::

    /PREFIX/NAME      a lock, or a note; NAME is percent-quoted
    /PREFIX/%clock    written with each change: it tells the leader's time, and the transaction

A client cannot ask ZooKeeper for the time. But the leader stamps each node with the time of its
last change. So a lease ends ``lasts`` seconds after that stamp, and whoever finds one that looks
over writes to ``%clock`` first, and compares the two stamps. No lease ends by a client's clock.
"""

from __future__ import annotations

import atexit
import builtins
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, ClassVar, NamedTuple, TypeVar
from urllib.parse import quote, unquote

try:
    from kazoo.client import KazooClient
except ImportError as error:
    raise ImportError(f"it needs kazoo ({error}): install django-tasklock[zookeeper]") from error
from kazoo import exceptions as zk
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.hosts import collect_hosts
from kazoo.protocol.states import KeeperState
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from .._compat.native_threads import are_patched, start_thread, this_thread
from .._values import clock
from .._values.arguments import LONGEST_TTL_SECONDS, is_name
from .._values.tokens import chance, new_token
from ..conf import StoreSettings
from ..exceptions import InvalidLockConfig, StoreUnavailable
from . import records
from .base import BaseStore, Finding
from .records import FREE, KEEP, Change, Done, Entry, Held, is_note

__all__ = ["ZooKeeperStore"]

# No quoted name begins so.
CLOCK = "%clock"
# In a record's text: how many seconds after the node's last change it ends.
LASTS = "lasts"
# What the leader's clock shows is worked out from the last write for so long.
KNOWN_SECONDS = 10.0
# Nodes that are asked for before the first answer is waited for.
BATCH = 500
# The note of the process that removes what is over, for so long; and how many puts try to be it.
SWEEPING, SWEEP_SECONDS, SWEEP_CHANCE = " sweeping", 60.0, 1 / 32
# How much longer than its time a caller waits for the thread that makes its call.
GRACE_SECONDS = 1.0
RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 0.5}

# Errors after which a call is made again, on the next connection, within its time.
CUT = (
    zk.ConnectionClosedError, zk.ConnectionLoss, zk.OperationTimeoutError, zk.SessionExpiredError,
    zk.SessionMovedError,
)  # fmt: skip
# What a transaction says if others have changed its nodes since they were read, but for NoNode.
OVERTAKEN = (zk.BadVersionError, zk.NodeExistsError)
# What it says of the requests that are right.
UNDONE = (zk.RolledBackError, zk.RuntimeInconsistency)
REASONS = {
    KazooTimeoutError: "no answer in time",
    zk.AuthFailedError: "ZooKeeper does not accept the option AUTH",
    zk.ConnectionClosedError: "kazoo's client has ended: the log of kazoo.client says why",
    zk.NoAuthError: "ZooKeeper refuses to read, create, write or delete nodes below KEY_PREFIX "
    "(NoAuth): see the option AUTH, and the ACL of that node",
    zk.NotEmptyError: "the lock's node has nodes of another program below it",
}


def _is_hosts(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(collect_hosts(value)[0])
    except ValueError:
        return False


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < 86400


def _are_credentials(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and [type(text) for text in pair] == [str, str]
        for pair in value
    )


def _is_path(value: str) -> bool:
    parts = value.strip("/").split("/")
    wrong = (part in ("", ".", "..") or not part.isprintable() for part in parts)
    return parts[0] != "zookeeper" and not any(wrong)


# Options that are kazoo's own, in small letters.
TLS = (
    "USE_SSL", "CA", "CERTFILE", "KEYFILE", "KEYFILE_PASSWORD", "VERIFY_CERTS", "CHECK_HOSTNAME",
)  # fmt: skip
# What each option must be, and how an error says that.
OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "HOSTS": (_is_hosts, 'a text such as "zk1:2181,zk2:2181/chroot"'),
    "TIMEOUT": (_is_seconds, "a number of seconds, more than 0 and less than a day"),
    "AUTH": (_are_credentials, 'a list of pairs such as ("digest", "user:password")'),
    "KEY_PREFIX": (_is_path, 'a path such as "lock" or "shop/locks", not below /zookeeper'),
}
DEFAULTS = {"TIMEOUT": 5.0, "AUTH": ()}

T = TypeVar("T")


class _Node(NamedTuple):
    """A node as it was read."""

    entry: Entry
    version: int
    # When it ends, in milliseconds since the epoch by the leader's clock; None: never.
    ends: float | None

    def at(self, moment: float) -> _Node:
        """The same node, with the seconds that are left at a moment by the leader's clock."""
        if self.ends is None or self.entry.left is None:
            return self
        left = min(self.entry.left, (self.ends - moment) / 1000)
        return self._replace(entry=self.entry._replace(left=left))

    @property
    def live(self) -> Entry | None:
        """The entry; None if nothing was left of it at that moment."""
        return self.entry if self.entry.left is None or self.entry.left > 0 else None


class _Link:
    """kazoo's client, and what it has last learned of the leader's clock."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments
        self.client: Any = None
        # The stamp of the last write, in milliseconds since the epoch, and when the answer to it
        # had come, on `clock.now`.
        self.written, self.heard = 0.0, -inf
        self.new_process()
        _links.add(self)

    def new_process(self) -> None:
        """Have no client. In a forked child: the client's threads are the parent's."""
        if self.client is not None:
            _inherited.append(self.client)
        self.client, self._starting = None, threading.Lock()

    def connected(self, deadline: float) -> Any:
        """The client, once it is connected. Raises what kazoo raises."""
        with self._starting:
            if self.client is None:
                self.client = KazooClient(**self._arguments)
                self._live = self.client.start_async()
                # At the end of a process it would wait for threads, or greenlets, that are gone.
                atexit.unregister(self.client.handler.stop)
            client, live = self.client, self._live
        if live.wait(max(0.0, deadline - clock.now())):
            return client
        if client.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED):
            # kazoo's thread has ended, as it does after what it does not expect.
            self.close(client)
            raise zk.ConnectionClosedError
        raise KazooTimeoutError

    def close(self, client: Any = None) -> None:
        """End the client, or only this one. In a thread: a garbage collector may call this in one
        of kazoo's."""
        old = self.client
        if old is not None and client in (None, old):
            self.client = None
            with suppress(RuntimeError):  # The system starts no thread now.
                _start(partial(_stop, old))


def _stop(client: Any) -> None:
    with suppress(Exception):
        client.stop()
        client.close()


def _start(work: Callable[[], None]) -> None:
    """Do the work in a new thread, or greenlet. Raises `RuntimeError` if the system starts none."""
    if are_patched():
        threading.Thread(target=work, daemon=True).start()
    else:
        # An exception from a signal handler leaves it as it is; `threading` takes that ill.
        start_thread(work)


class _Call:
    """One call of the store: how long it may still take, and the requests that it makes."""

    def __init__(self, link: _Link, prefix: str, seconds: float) -> None:
        self._link, self.prefix, self._clock = link, prefix, f"{prefix}/{CLOCK}"
        self._deadline = clock.now() + seconds
        self.client: Any = None
        # Whether a transaction was sent whose answer was lost.
        self.sent = False

    def made(self, work: Callable[[_Call], T]) -> T:
        """What ``work`` returns; it is done again if the connection was cut."""
        while True:
            try:
                self.client = self._link.connected(self._deadline)
                return work(self)
            except (*CUT, zk.NoNodeError) as error:
                if clock.now() >= self._deadline:
                    raise
                if isinstance(error, zk.NoNodeError):
                    self.make_clock()

    def got(self, result: Any) -> Any:
        """The answer to a request. Raises what kazoo raises."""
        return result.get(timeout=max(0.001, self._deadline - clock.now()))

    def path(self, name: str) -> str:
        return f"{self.prefix}/{_quoted(name)}"

    def children(self) -> list[str]:
        """The nodes below the prefix."""
        synced = self.client.sync_async(self.prefix)
        asked = self.client.get_children_async(self.prefix)
        self.got(synced)
        try:
            return [*self.got(asked)]
        except zk.NoNodeError:
            return []

    def read(self, names: Sequence[str]) -> list[_Node | None]:
        """The nodes of some names, those that are over too."""
        # The server that is asked may be a moment behind: it is to know what was done until now.
        synced = self.client.sync_async(self.prefix)
        asked = [self.client.get_async(self.path(name)) for name in names]
        self.got(synced)
        nodes = [self._node(name, result) for name, result in zip(names, asked, strict=True)]
        passed = clock.now() - self._link.heard
        moment = self._link.written + passed * 1000
        ending = [node for node in nodes if node is not None and node.ends is not None]
        if ending and (passed > KNOWN_SECONDS or not all(node.at(moment).live for node in ending)):
            stat = self.got(self.client.set_async(self._clock, b""))
            moment = self._learn(stat)
        return [None if node is None else node.at(moment) for node in nodes]

    def commit(self, requests: Sequence[tuple[Any, ...]]) -> Any:
        """Make changes in one step, and write to the clock. Returns the stat of the clock; None if
        others have changed the nodes since they were read."""
        transaction = self.client.transaction()
        for verb, *arguments in requests:
            getattr(transaction, verb)(*arguments)
        transaction.set_data(self._clock, b"")
        self.sent = True
        results = self.got(transaction.commit_async())
        self.sent = False
        errors = [each for each in results if isinstance(each, Exception)]
        if not errors:
            self._learn(results[-1])
            return results[-1]
        error = next(each for each in errors if not isinstance(each, UNDONE))
        if clock.now() >= self._deadline or not isinstance(error, OVERTAKEN):
            raise error
        return None

    def make_clock(self) -> None:
        self.got(self.client.ensure_path_async(self._clock))

    def _learn(self, stat: Any) -> float:
        self._link.written, self._link.heard = stat.mtime, clock.now()
        return float(stat.mtime)

    def _node(self, name: str, result: Any) -> _Node | None:
        try:
            data, stat = self.got(result)
        except zk.NoNodeError:
            return None
        record = dict(records.record_of(data) or {})
        lasts = record.pop(LASTS, None)
        if not (
            record
            and type(lasts) in (int, float, type(None))
            and (lasts is None or 0 < lasts <= LONGEST_TTL_SECONDS)
        ):
            digest = records.digest_of(data)
            return _Node(Entry(name, None, None, digest=digest), stat.version, None)
        fence = None if is_note(name) else stat.czxid
        entry = Entry(name, record, lasts, fence, None, stat.ctime / 1000)
        # The stamps are cut off to whole milliseconds: one more must have passed.
        ends = None if lasts is None else stat.mtime + lasts * 1000 + 1
        return _Node(entry, stat.version, ends)


def _goal(change: Change, there: Entry | None) -> Entry | None:
    """What is under a name after a change. A new lease has not yet ``began``."""
    name, expect, record, ttl = change
    if not isinstance(record, Mapping):
        if record is None or there is None or there.record is None or ttl is None:
            return None if record is None else there
        return there._replace(left=ttl)
    if there is not None and (isinstance(expect, Held) or records.is_there(change, there)):
        return there._replace(record=record, left=ttl)
    return Entry(name, record, ttl)


def _requests(path: str, node: _Node | None, goal: Entry | None, *, keep: bool) -> Iterator[Any]:
    """What makes a change, for `_Call.commit`. It is refused if the node is not as it was read."""
    there = None if node is None else node.live
    if keep and goal is there:
        # No request checks that there is no node: one is made and removed in the same step.
        none = ("create", path, b""), ("delete", path, 0)
        yield from none if node is None else (("check", path, node.version),)
    elif node is not None and goal is not None and goal.began is not None:
        yield "set_data", path, _data(goal), node.version
    else:
        if node is not None:
            yield "delete", path, node.version
        if goal is not None:
            yield "create", path, _data(goal)


def _data(entry: Entry) -> bytes:
    ends = {} if entry.left is None else {LASTS: entry.left}
    return records.text_of_record({**(entry.record or {}), **ends}).encode("ascii")


def _put(call: _Call, changes: Sequence[Change]) -> Done:
    while True:
        sent, nodes = call.sent, call.read([change.name for change in changes])
        live = [None if node is None else node.live for node in nodes]
        made = all(
            records.fits(change, entry) or (sent and entry is None and change.record is None)
            for change, entry in zip(changes, live, strict=True)
        )
        goals = [_goal(*each) for each in zip(changes, live, strict=True)]
        requests = [
            request
            for change, node, goal in zip(changes, nodes, goals, strict=True)
            for request in _requests(call.path(change.name), node, goal, keep=change.record == KEEP)
        ]
        if not made or not requests:
            return Done(made, live)
        stat = call.commit(requests)
        if stat is not None:
            return Done(True, [_granted(goal, stat) for goal in goals])


def _granted(goal: Entry | None, stat: Any) -> Entry | None:
    """The entry as it was written; ``stat``: of the clock, written in the same step."""
    if goal is None or goal.began is not None:
        return goal
    fence = None if is_note(goal.name) else stat.mzxid
    return goal._replace(fence=fence, began=stat.mtime / 1000)


def _get(call: _Call, names: Sequence[str], *, tidy: bool = False) -> list[Entry | None]:
    nodes = call.read(names)
    for node in nodes if tidy else ():
        if node is not None and node.live is None:
            # Nobody waits for the answer, which may be that the lock was taken meanwhile.
            call.client.delete_async(call.path(node.entry.name), node.version)
    return [None if node is None else node.live for node in nodes]


class ZooKeeperStore(BaseStore):
    """One persistent node for each lock. A lease outlives its process and its connection, and ends
    after its ttl by the clock of ZooKeeper's leader.

    Its fences are numbers of the ensemble's transactions. Waiters poll, in no order. ZooKeeper 3.5
    or newer.
    """

    known_options: ClassVar[frozenset[str]] = frozenset({"HOSTS", "TIMEOUT", "AUTH", *TLS})

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        if are_patched() and "eventlet" in sys.modules:
            raise InvalidLockConfig(
                f"the lock store {self.alias!r} is in ZooKeeper, and kazoo's threads do not work "
                "in a process that eventlet has patched; under gevent they do"
            )
        given = {**DEFAULTS, "KEY_PREFIX": settings.key_prefix, **settings.options}
        for option, (is_right, right) in OPTIONS.items():
            if not is_right(given.get(option)):
                # Without the value: it may be a password.
                raise InvalidLockConfig(f"{option} of the lock store {self.alias!r} is {right}")
        self.prefix = "/" + settings.key_prefix.strip("/")
        self._seconds = float(given["TIMEOUT"])
        client = {
            "hosts": given["HOSTS"],
            # A server that is silent for so long is given up, and another one asked.
            "timeout": self._seconds,
            "connection_retry": RECONNECT,
            "auth_data": [tuple(pair) for pair in given["AUTH"]],
            "default_acl": CREATOR_ALL_ACL if given["AUTH"] else OPEN_ACL_UNSAFE,
            **{option.lower(): given[option] for option in TLS if option in given},
        }
        # The renewal thread's own: see `this_thread`.
        self._link, self._renewal_link = _Link(client), _Link(client)
        for link in (self._link, self._renewal_link):
            weakref.finalize(self, link.close).atexit = False

    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        if chance.random() < SWEEP_CHANCE:
            with suppress(RuntimeError):  # The system starts no thread now.
                _start(self._sweep)
        return self._call(lambda call: _put(call, changes))

    def get(self, names: Sequence[str]) -> builtins.list[Entry | None]:
        return self._call(lambda call: _get(call, names))

    def list(self, prefix: str = "") -> Iterator[Entry]:
        names = [
            name
            for name in map(_name_of, self._call(_Call.children))
            if name is not None and name.startswith(prefix) and is_note(name) == is_note(prefix)
        ]
        found: builtins.list[Entry] = []
        for start in range(0, len(names), BATCH):
            batch = names[start : start + BATCH]
            found += filter(None, self._call(partial(_get, names=batch, tidy=True)))
        return iter(sorted(found, key=records.left_of))

    def key(self, name: str) -> str:
        """The path of a lock's node, without the chroot."""
        return f"{self.prefix}/{_quoted(name)}"

    def check(self) -> Iterable[Finding]:
        self._call(_Call.make_clock)
        return ()

    def close_idle(self) -> None:
        self._link.close()
        self._renewal_link.close()

    def _sweep(self) -> None:
        """Remove what is over, so that it does not pile up; unless a process did so just now."""
        mine = Change(SWEEPING, FREE, records.new_record(new_token(), {}), SWEEP_SECONDS)
        with suppress(StoreUnavailable):
            if self._call(lambda call: _put(call, [mine])).made:
                self.list()
                self.list(" ")

    def _call(self, work: Callable[[_Call], T]) -> T:
        """Return what ``work`` returns, or raise `StoreUnavailable`.

        It is done in a thread of its own. An exception from a signal handler, such as Celery's soft
        time limit, comes between any two instructions of the main thread: in the middle of kazoo's
        it would leave a request in a queue, and each answer after that would be late by one.
        A call whose caller was interrupted goes on to its end.
        """
        own = this_thread.renews and are_patched()
        link = self._renewal_link if own else self._link
        call = _Call(link, self.prefix, self._seconds)
        answers: builtins.list[T] = []
        errors: builtins.list[BaseException] = [KazooTimeoutError()]
        done = threading.Lock()
        done.acquire()

        def run() -> None:
            try:
                answers.append(call.made(work))
            except BaseException as error:
                errors.append(error)
            finally:
                done.release()

        try:
            _start(run)
        except RuntimeError as error:  # The system starts no thread now.
            raise StoreUnavailable(self.alias, str(error)) from error
        done.acquire(timeout=self._seconds + GRACE_SECONDS)
        if answers:
            return answers[0]
        why = errors[-1]
        reason = REASONS.get(type(why)) or f"{type(why).__name__}: {why}"
        raise StoreUnavailable(self.alias, reason) from why


def _quoted(name: str) -> str:
    """A name as that of a node."""
    # ZooKeeper takes no node "." or "..".
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe=":@+,=#")


def _name_of(child: str) -> str | None:
    """The name that a node below the prefix stands for; None: none."""
    try:
        name = unquote(child, errors="strict")
    except ValueError:
        return None
    return name if _quoted(name) == child and (is_note(name) or is_name(name)) else None


# The clients of this process; and those of the process that forked it, which nothing may collect:
# that would do things to the parent's connection.
_links: weakref.WeakSet[_Link] = weakref.WeakSet()
_inherited: list[Any] = []


def _new_process() -> None:
    for link in _links:
        link.new_process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_process)
