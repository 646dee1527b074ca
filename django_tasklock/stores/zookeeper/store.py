"""The store in ZooKeeper: its clients, its calls, each in a thread of its own, and its settings."""

from __future__ import annotations

import atexit
import builtins
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from math import inf
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, TypeVar

try:
    from kazoo.client import KazooClient
except ImportError as error:
    raise ImportError(f"it needs kazoo ({error}): install django-tasklock[zookeeper]") from error
from kazoo import exceptions as zk
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.hosts import collect_hosts
from kazoo.protocol.states import KeeperState
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from ..._compat.native_threads import are_patched, start_thread
from ..._values import clock
from ..._values.processes import OfProcess
from ..._values.tokens import chance, new_token
from ...conf import StoreSettings
from ...exceptions import StoreUnavailable
from ..base import BaseStore, Finding
from ..records import FREE, Change, Done, Entry, fits, is_listed, left_of, new_record
from .nodes import CLOCK, Found, Node, Request, delete, granted, name_of, node_of, path_of, plan

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

# A forked child neither closes the clients of its parent nor leaves them to the garbage collector.
_inherited: list[_Link] = []


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
                # At the end of a process it would wait for threads that are gone.
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
    """Do the work in a new thread. False: the system starts none now."""
    with suppress(RuntimeError):
        # An exception from a signal handler leaves it as it is; `threading` takes that ill.
        start_thread(work)
        return True
    return False


class _Call:
    """One call of the store: how long it may still take, and the requests that it makes."""

    def __init__(self, link: _Link, prefix: str, seconds: float) -> None:
        self.link, self._prefix = link, prefix
        self._clock = f"{prefix}/{CLOCK}"
        self._deadline = clock.now() + seconds
        self.client: Any = None
        # Whether a transaction was sent whose answer was lost.
        self.sent = False

    def made(self, work: Callable[[_Call], T]) -> T:
        """What ``work`` returns; it is done again if the connection was cut."""
        while True:
            try:
                self.client = self.link.connected(self._deadline)
                return work(self)
            except (*CUT, zk.NoNodeError) as error:
                if clock.now() >= self._deadline:
                    raise
                if isinstance(error, zk.NoNodeError):
                    self.make_clock()

    def make_clock(self) -> None:
        self._got(self.client.ensure_path_async(self._clock))

    def names(self) -> list[str]:
        """Of all locks and notes."""
        synced = self.client.sync_async(self._prefix)
        asked = self.client.get_children_async(self._prefix)
        self._got(synced)
        return [name for name in map(name_of, self._got(asked)) if name is not None]

    def read(self, names: Sequence[str]) -> list[Node]:
        """The nodes of some names."""
        # The server that is asked may be a moment behind: it is to know what was done until now.
        synced = self.client.sync_async(self._prefix)
        asked = [self.client.get_async(path_of(self._prefix, name)) for name in names]
        self._got(synced)
        found: list[Found] = [self._found(result) for result in asked]
        passed = clock.now() - self.link.heard
        # If the leader's clock is not known, every node that ends looks over.
        moment = self.link.written + passed * 1000 if passed < KNOWN_SECONDS else inf
        nodes = [*map(node_of, names, found, repeat(moment))]
        if any(node.is_over for node in nodes):
            moment = self._learn(self._got(self.client.set_async(self._clock, b"")))
            nodes = [*map(node_of, names, found, repeat(moment))]
        return nodes

    def put(self, changes: Sequence[Change]) -> Done:
        """Make all changes, or none."""
        while True:
            sent, nodes = self.sent, self.read([change.name for change in changes])
            there = [node.entry for node in nodes]
            for change, entry in zip(changes, there, strict=True):
                # What is gone was removed by the transaction whose answer was lost.
                is_removed = sent and entry is None and change.record is None
                if not (is_removed or fits(change, entry)):
                    return Done(False, there)
            requests: list[Request] = []
            goals: list[Entry | None] = []
            for change, node in zip(changes, nodes, strict=True):
                its, goal = plan(change, node, path_of(self._prefix, change.name))
                requests += its
                goals.append(goal)
            stat = self.commit(requests) if requests else None
            if stat is not None or not requests:
                return Done(True, [granted(goal, stat) for goal in goals])

    def remove_over(self, names: Sequence[str]) -> None:
        """Delete the nodes of some names that are over."""
        for name, node in zip(names, self.read(names), strict=True):
            if node.is_over:
                # Nobody waits for the answer, which may be that the lock was taken meanwhile.
                self.send(delete(path_of(self._prefix, name), node))

    def commit(self, requests: Sequence[Request]) -> Any:
        """Make changes in one step, and write to the clock. Returns the stat of the clock; None if
        others have changed the nodes since they were read."""
        self.sent = True
        results = self._got(self.send([*requests, ("set_data", self._clock, b"")]))
        self.sent = False
        errors = [each for each in results if isinstance(each, Exception)]
        error = next((each for each in errors if not isinstance(each, UNDONE)), None)
        if error is None:
            self._learn(results[-1])
            return results[-1]
        if clock.now() >= self._deadline or not isinstance(error, OVERTAKEN):
            raise error
        return None

    def send(self, requests: Sequence[Request]) -> Any:
        """Make changes in one step. Returns what is `_got`: a result, or an error, for each."""
        transaction = self.client.transaction()
        for verb, *arguments in requests:
            getattr(transaction, verb)(*arguments)
        return transaction.commit_async()

    def _got(self, result: Any) -> Any:
        """The answer to a request. Raises what kazoo raises."""
        return result.get(timeout=max(0.001, self._deadline - clock.now()))

    def _found(self, result: Any) -> Any:
        """The same of a node; None: there is none."""
        with suppress(zk.NoNodeError):
            return self._got(result)
        return None

    def _learn(self, stat: Any) -> float:
        self.link.written, self.link.heard = stat.mtime, clock.now()
        return float(stat.mtime)


class ZooKeeperStore(BaseStore):
    """One persistent node for each lock. A lease outlives its process and its connection, and ends
    after its ttl by the clock of ZooKeeper's leader.

    Its fences are numbers of the ensemble's transactions. Waiters poll, in no order. ZooKeeper 3.5
    or newer.
    """

    known_options: ClassVar[frozenset[str]] = frozenset({"HOSTS", "TIMEOUT", "AUTH", *TLS})

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        if are_patched():
            raise settings.wrong(
                "its calls need threads, and gevent or eventlet has patched this process. Use "
                "another pool, or a store on Redis"
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
        arguments = {
            "hosts": options["HOSTS"],
            # A server that is silent for so long is given up, and another one asked.
            "timeout": self.seconds,
            "connection_retry": RECONNECT,
            "auth_data": auth,
            "default_acl": CREATOR_ALL_ACL if auth else OPEN_ACL_UNSAFE,
            **{option.lower(): options[option] for option in TLS if option in options},
        }
        self._link = OfProcess(lambda: _Link(arguments), _inherited.append)
        weakref.finalize(self, lambda link: link.own().close(), self._link).atexit = False

    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        if chance.random() < SWEEP_CHANCE:
            _start(self._sweep)
        return self._call(lambda call: call.put(changes))

    def get(self, names: Sequence[str]) -> builtins.list[Entry | None]:
        return self._call(lambda call: [node.entry for node in call.read(names)])

    def list(self, prefix: str = "") -> Iterator[Entry]:
        names = [name for name in self._call(_Call.names) if is_listed(name, prefix)]
        found: builtins.list[Entry] = []
        for batch in _batches(names):
            found += filter(None, self.get(batch))
        return iter(sorted(found, key=left_of))

    def key(self, name: str) -> str:
        """The path of a lock's node, without the chroot."""
        return path_of(self.prefix, name)

    def check(self) -> Iterable[Finding]:
        self._call(_Call.make_clock)
        return super().check()

    def close_idle(self) -> None:
        self._link.own().close()

    def _sweep(self) -> None:
        """Remove what is over, so that it does not pile up; unless a process did so just now."""
        mine = Change(SWEEPING, FREE, new_record(new_token(), {}), SWEEP_SECONDS)
        with suppress(StoreUnavailable):
            if self._call(lambda call: call.put([mine])).made:
                for batch in _batches(self._call(_Call.names)):
                    self._call(partial(_Call.remove_over, names=batch))

    def _call(self, work: Callable[[_Call], T]) -> T:
        """Return what ``work`` returns, or raise `StoreUnavailable`.

        It is done in a thread of its own. An exception from a signal handler, such as Celery's soft
        time limit, comes between any two instructions of the main thread: in the middle of kazoo's
        it would leave a request in a queue, and each answer after that would be late by one.
        A call whose caller was interrupted goes on to its end.
        """
        call = _Call(self._link.own(), self.prefix, self.seconds)
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


def _batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(names), BATCH):
        yield names[first : first + BATCH]
