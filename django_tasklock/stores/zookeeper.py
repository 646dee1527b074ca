"""Locks in ZooKeeper: one persistent node for each, which ends by the leader's clock.

::

    /PREFIX/NAME          a lock, or a note; NAME is percent-quoted
    /PREFIX/NAME/CHILD    made and deleted with it; CHILD is random, and stands in its data too
    /PREFIX/%clock        written with each change: it tells the leader's time, and the transaction

The version of a node begins at 0 again in each new node. A change that arrives late, when the next
lease's node has the same version, would hit that one. So each change of a node names its child as
well: without that one the transaction is refused. And no node is deleted that has another child.

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
from itertools import chain, repeat
from math import inf
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar
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
from .._values.arguments import LONGEST_TTL_SECONDS, is_name, is_token
from .._values.tokens import chance, new_token
from ..conf import StoreSettings
from ..exceptions import StoreUnavailable
from . import records
from .base import BaseStore, Finding
from .records import FREE, KEEP, Change, Done, Entry, Held, is_note

# No quoted name begins so.
CLOCK = "%clock"
# In a record's text: how many seconds after the node's last change it ends, and the node's child.
LASTS, CHILD = "lasts", "child"
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

# Options that are kazoo's own, in small letters.
TLS = (
    "USE_SSL", "CA", "CERTFILE", "KEYFILE", "KEYFILE_PASSWORD", "VERIFY_CERTS", "CHECK_HOSTNAME",
)  # fmt: skip
DEFAULT_TIMEOUT_SECONDS = 5.0

T = TypeVar("T")
# A verb of kazoo's transactions, a path, and what else it takes.
Request: TypeAlias = tuple[Any, ...]


class _Node(NamedTuple):
    """What was read of one name."""

    entry: Entry | None
    """None: there is no node, or it is over"""
    version: int | None = None
    """None: there is no node"""
    child: str | None = None
    """None: there is no node, or that of another program"""

    @property
    def is_over(self) -> bool:
        return self.entry is None and self.version is not None


class _Link:
    """The client of one process, and what it has last learned of the leader's clock."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments
        self._starting = threading.Lock()
        self.client: Any = None
        # The stamp of the last write, in milliseconds since the epoch, and when the answer to it
        # had come, on `clock.now`.
        self.written, self.heard = 0.0, -inf

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
            self.close()
            raise zk.ConnectionClosedError
        raise KazooTimeoutError

    def close(self) -> None:
        """End the client. In a thread: a garbage collector may call this in one of kazoo's."""
        old, self.client = self.client, None
        if old is not None:
            _start(partial(_stop, old))


def _stop(client: Any) -> None:
    with suppress(Exception):
        client.stop()
        client.close()


def _start(work: Callable[[], None]) -> bool:
    """Do the work in a new thread, or greenlet. False: the system starts none now."""
    try:
        if are_patched():
            threading.Thread(target=work, daemon=True).start()
        else:
            # An exception from a signal handler leaves it as it is; `threading` takes that ill.
            start_thread(work)
    except RuntimeError:
        return False
    return True


class _Call:
    """One call of the store: how long it may still take, and the requests that it makes."""

    def __init__(self, store: ZooKeeperStore) -> None:
        self._link, self._prefix, self.path = store._link, store.prefix, store.key
        self._clock = f"{store.prefix}/{CLOCK}"
        self._deadline = clock.now() + store.seconds
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

    def names(self) -> list[str]:
        """Of all locks and notes."""
        synced = self.client.sync_async(self._prefix)
        asked = self.client.get_children_async(self._prefix)
        self.got(synced)
        return [name for name in map(_name_of, self.got(asked)) if name is not None]

    def read(self, names: Sequence[str]) -> list[_Node]:
        """The nodes of some names."""
        # The server that is asked may be a moment behind: it is to know what was done until now.
        synced = self.client.sync_async(self._prefix)
        asked = [self.client.get_async(self.path(name)) for name in names]
        self.got(synced)
        found = [self._found(result) for result in asked]
        passed = clock.now() - self._link.heard
        # If the leader's clock is not known, every node that ends looks over.
        moment = self._link.written + passed * 1000 if passed < KNOWN_SECONDS else inf
        nodes = [*map(_node, names, found, repeat(moment))]
        if any(node.is_over for node in nodes):
            moment = self._learn(self.got(self.client.set_async(self._clock, b"")))
            nodes = [*map(_node, names, found, repeat(moment))]
        return nodes

    def send(self, requests: Sequence[Request]) -> Any:
        """Make changes in one step. Returns what is `got`: a result, or an error, for each."""
        transaction = self.client.transaction()
        for verb, *arguments in requests:
            getattr(transaction, verb)(*arguments)
        return transaction.commit_async()

    def commit(self, requests: Sequence[Request]) -> Any:
        """Make changes in one step, and write to the clock. Returns the stat of the clock; None if
        others have changed the nodes since they were read."""
        self.sent = True
        results = self.got(self.send([*requests, ("set_data", self._clock, b"")]))
        self.sent = False
        errors = [each for each in results if isinstance(each, Exception)]
        error = next((each for each in errors if not isinstance(each, UNDONE)), None)
        if error is None:
            self._learn(results[-1])
            return results[-1]
        if clock.now() >= self._deadline or not isinstance(error, OVERTAKEN):
            raise error
        return None

    def make_clock(self) -> None:
        self.got(self.client.ensure_path_async(self._clock))

    def _learn(self, stat: Any) -> float:
        self._link.written, self._link.heard = stat.mtime, clock.now()
        return float(stat.mtime)

    def _found(self, result: Any) -> tuple[bytes, Any] | None:
        try:
            data, stat = self.got(result)
        except zk.NoNodeError:
            return None
        return data, stat


def _node(name: str, found: tuple[bytes, Any] | None, moment: float) -> _Node:
    """The node that was found, as it is at a moment by the leader's clock."""
    if found is None:
        return _Node(None)
    data, stat = found
    record = dict(records.record_of(data) or {})
    lasts, child = record.pop(LASTS, None), record.pop(CHILD, None)
    is_number = type(lasts) in (int, float) and 0 < lasts <= LONGEST_TTL_SECONDS
    has_child = type(child) is str and is_token(child) and stat.numChildren
    if not record or not has_child or not (lasts is None or is_number):
        digest = records.digest_of(data)
        return _Node(Entry(name, None, None, digest=digest), stat.version)
    # The stamps are cut off to whole milliseconds: one more must have passed.
    left = None if lasts is None else min(lasts, lasts + (stat.mtime + 1 - moment) / 1000)
    if left is not None and left <= 0:
        return _Node(None, stat.version, child)
    fence = None if is_note(name) else stat.czxid
    return _Node(Entry(name, record, left, fence, None, stat.ctime / 1000), stat.version, child)


def _to(verb: str, path: str, node: _Node, *data: bytes) -> list[Request]:
    """The requests that check, write or delete a node, if it is the one that was read, as it was
    read."""
    also = "delete" if verb == "delete" else "check"
    child = [] if node.child is None else [(also, f"{path}/{node.child}", 0)]
    return [*child, (verb, path, *data, node.version)]


def _plan(change: Change, node: _Node, path: str) -> tuple[list[Request], Entry | None]:
    """What makes a change that fits, for `_Call.commit`, and what is there then.

    The requests are refused if the node is not as it was read. A new lease has not yet ``began``.
    """
    name, expect, record, ttl = change
    there, is_new = node.entry, node.version is None
    keeps = record == KEEP
    if keeps and (there is None or there.record is None or ttl is None):
        # No request checks that there is no node: one is made and removed in the same step.
        none: list[Request] = [("create", path, b""), ("delete", path, 0)]
        return none if is_new else _to("check", path, node), there
    new = there.record if keeps and there else record
    is_same = keeps or isinstance(expect, Held) or records.is_there(change, there)
    if there is not None and isinstance(new, Mapping) and is_same:
        goal = there._replace(record=new, left=ttl)
        return _to("set_data", path, node, _data(goal, node.child)), goal
    requests = [] if is_new else _to("delete", path, node)
    if not isinstance(new, Mapping):
        return requests, None
    goal, child = Entry(name, new, ttl), new_token()
    made = [("create", path, _data(goal, child)), ("create", f"{path}/{child}", b"")]
    return [*requests, *made], goal


def _data(entry: Entry, child: str | None) -> bytes:
    ends = {} if entry.left is None else {LASTS: entry.left}
    return records.text_of_record({**(entry.record or {}), **ends, CHILD: child}).encode("ascii")


def _put(call: _Call, changes: Sequence[Change]) -> Done:
    while True:
        sent, nodes = call.sent, call.read([change.name for change in changes])
        live = [node.entry for node in nodes]
        made = all(
            records.fits(change, entry) or (sent and entry is None and change.record is None)
            for change, entry in zip(changes, live, strict=True)
        )
        plans = [
            _plan(change, node, call.path(change.name))
            for change, node in zip(changes, nodes, strict=True)
        ]
        requests = [*chain(*(requests for requests, _ in plans))]
        if not made or not requests:
            return Done(made, live)
        stat = call.commit(requests)
        if stat is not None:
            return Done(True, [_granted(goal, stat) for _, goal in plans])


def _granted(goal: Entry | None, stat: Any) -> Entry | None:
    """The entry as it was written; ``stat``: of the clock, written in the same step."""
    if goal is None or goal.began is not None:
        return goal
    fence = None if is_note(goal.name) else stat.mzxid
    return goal._replace(fence=fence, began=stat.mtime / 1000)


def _remove_over(names: Sequence[str], call: _Call) -> None:
    for name, node in zip(names, call.read(names), strict=True):
        if node.is_over:
            # Nobody waits for the answer, which may be that the lock was taken meanwhile.
            call.send(_to("delete", call.path(name), node))


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
            raise settings.wrong(
                "kazoo, its client of ZooKeeper, does not work in a process that eventlet has "
                "patched; under gevent it does"
            )
        options = settings.options
        parts = settings.key_prefix.strip("/").split("/")
        wrong = (part.strip(".") == "" or not part.isprintable() for part in parts)
        if parts[0] == "zookeeper" or any(wrong):
            what = 'KEY_PREFIX must be a path like "lock" or "shop/locks", not below /zookeeper'
            raise settings.wrong(what)
        self.prefix = "/" + "/".join(parts)
        self.seconds = settings.seconds("TIMEOUT", DEFAULT_TIMEOUT_SECONDS)
        try:
            collect_hosts(options["HOSTS"])
            auth = [(scheme, credential) for scheme, credential in options.get("AUTH", ())]
        except (AttributeError, KeyError, TypeError, ValueError):
            # Without the values: one may be a password.
            raise settings.wrong(
                'the option HOSTS must be a str like "zk1:2181,zk2:2181/chroot", and AUTH a list '
                'of pairs like ("digest", "user:password")'
            ) from None
        self._arguments = {
            "hosts": options["HOSTS"],
            # A server that is silent for so long is given up, and another one asked.
            "timeout": self.seconds,
            "connection_retry": RECONNECT,
            "auth_data": auth,
            "default_acl": CREATOR_ALL_ACL if auth else OPEN_ACL_UNSAFE,
            **{option.lower(): options[option] for option in TLS if option in options},
        }
        # By process, and whether it is the renewal thread's own: see `this_thread`. The parent's
        # are not closed, nor left to the garbage collector, in a child that has inherited them.
        self._links: dict[tuple[int, bool], _Link] = {}
        weakref.finalize(self, _close, self._links).atexit = False

    @property
    def _link(self) -> _Link:
        of = os.getpid(), this_thread.renews and are_patched()
        return self._links.get(of) or self._links.setdefault(of, _Link(self._arguments))

    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        if chance.random() < SWEEP_CHANCE:
            _start(self._sweep)
        return self._call(lambda call: _put(call, changes))

    def get(self, names: Sequence[str]) -> builtins.list[Entry | None]:
        return self._call(lambda call: [node.entry for node in call.read(names)])

    def list(self, prefix: str = "") -> Iterator[Entry]:
        names = [
            name
            for name in self._call(_Call.names)
            if name.startswith(prefix) and is_note(name) == is_note(prefix)
        ]
        found: builtins.list[Entry] = []
        for start in range(0, len(names), BATCH):
            found += filter(None, self.get(names[start : start + BATCH]))
        return iter(sorted(found, key=records.left_of))

    def key(self, name: str) -> str:
        """The path of a lock's node, without the chroot."""
        return f"{self.prefix}/{_quoted(name)}"

    def check(self) -> Iterable[Finding]:
        self._call(_Call.make_clock)
        return ()

    def close_idle(self) -> None:
        _close(self._links)

    def _sweep(self) -> None:
        """Remove what is over, so that it does not pile up; unless a process did so just now."""
        mine = Change(SWEEPING, FREE, records.new_record(new_token(), {}), SWEEP_SECONDS)
        with suppress(StoreUnavailable):
            if self._call(lambda call: _put(call, [mine])).made:
                names = self._call(_Call.names)
                for start in range(0, len(names), BATCH):
                    self._call(partial(_remove_over, names[start : start + BATCH]))

    def _call(self, work: Callable[[_Call], T]) -> T:
        """Return what ``work`` returns, or raise `StoreUnavailable`.

        It is done in a thread of its own. An exception from a signal handler, such as Celery's soft
        time limit, comes between any two instructions of the main thread: in the middle of kazoo's
        it would leave a request in a queue, and each answer after that would be late by one.
        A call whose caller was interrupted goes on to its end.
        """
        call = _Call(self)
        answers: SimpleQueue[T | BaseException] = SimpleQueue()

        def run() -> None:
            try:
                answers.put(call.made(work))
            except BaseException as error:
                answers.put(error)

        if not _start(run):
            raise StoreUnavailable(self.alias, "the system cannot start a thread now")
        try:
            answer = answers.get(timeout=self.seconds + GRACE_SECONDS)
        except Empty:
            answer = KazooTimeoutError()
        if not isinstance(answer, BaseException):
            return answer
        reason = REASONS.get(type(answer)) or f"{type(answer).__name__}: {answer}"
        raise StoreUnavailable(self.alias, reason) from answer


def _quoted(name: str) -> str:
    """A name as that of a node."""
    # ZooKeeper takes no node "." or "..".
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe=":@+,=#")


def _name_of(child: str) -> str | None:
    """The name that a node below the prefix stands for; None: none."""
    name = unquote(child)
    return name if _quoted(name) == child and (is_note(name) or is_name(name)) else None


def _close(links: Mapping[tuple[int, bool], _Link]) -> None:
    for (process, _), link in [*links.items()]:
        if process == os.getpid():
            link.close()
