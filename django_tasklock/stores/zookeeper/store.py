"""Leases in ZooKeeper."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.signals import setting_changed

from ..._values.lock_info import LockInfo
from ...conf import SETTING, StoreSettings
from ...exceptions import InvalidLockConfig
from ..base import BaseStore, Extension, Finding, Grant, Note, Owner, Refusal, Reserved
from .options import OPTIONS, options_of
from .paths import quoted

if TYPE_CHECKING:
    from .records import Lease
    from .requests import Requests
    from .verbs import First
    from .waiter import ZooKeeperWaiter

__all__ = ["ZooKeeperStore"]


class ZooKeeperStore(BaseStore):
    """One node for each lock, below it one for the holder, and one for each waiter.

    These are ephemeral: they end with the session of the process that made them, and every process
    has one session for each store. A lease ends after its ttl too: see `leases`.

    ZooKeeper 3.5 or newer. Threads and processes; a process that gevent or eventlet has patched is
    refused.
    """

    supports_listing = True
    atomic_release = True
    supports_fence = True
    supports_waiting = True
    supports_rewrite = True
    known_options: ClassVar[frozenset[str]] = BaseStore.known_options | OPTIONS

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self.options = options_of(settings)
        try:
            import kazoo  # noqa: F401
        except ImportError as error:
            raise InvalidLockConfig(
                f"the lock store {self.alias!r} needs kazoo, which cannot be imported ({error}): "
                "install django-tasklock[zookeeper]"
            ) from error
        # What imports kazoo is not needed before.
        from kazoo.hosts import collect_hosts

        # Nor are the first three until they are used, but then an exception from a signal handler
        # may come into the import, or another thread import at the same time.
        from . import listing, rewriting, waiter  # noqa: F401
        from .connection import Connection
        from .notes import Notes
        from .server_time import ServerTime
        from .verbs import Verbs

        try:
            collect_hosts(self.options.hosts)
        except ValueError as error:
            raise InvalidLockConfig(
                f"the option HOSTS of the lock store {self.alias!r}: {error}"
            ) from error
        self._connection = Connection(self.alias, self.options)
        self._time = ServerTime()
        self.verbs = Verbs(self._time)
        self._notes = Notes(self._time)
        self.call = self._connection.call
        self.post = self._connection.post
        setting_changed.connect(self._changed)

    def _changed(self, *, setting: str, **_: Any) -> None:
        # Also where the store is not one of `stores`, which closes those that it drops.
        if setting == SETTING:
            self.close_idle()

    def close_idle(self) -> None:
        self._connection.close_idle()

    def key(self, name: str) -> str:
        """The path of a lock's node, without the chroot."""
        return f"{self.options.prefix}/{quoted(name)}"

    # ------------------------------------------------------------------------ leases

    def acquire(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> Grant | Refusal:
        lock = self.key(name)
        answer = self.call(lambda z: self.verbs.acquire(z, lock, token, ttl, owner))
        return answer if isinstance(answer, Grant) else Refusal(self._info(name, answer))

    def extend(self, name: str, token: str, ttl: float, proof: Any = None) -> bool:
        return self.call(lambda z: self.verbs.extend(z, self.key(name), token, ttl))

    def extend_many(self, batch: Sequence[Extension]) -> builtins.list[bool]:
        if not batch:
            return []
        leases = [each._replace(name=self.key(each.name)) for each in batch]
        return self.call(lambda z: self.verbs.extend_many(z, leases))

    def rewrite(
        self,
        name: str,
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        mark: str | None = None,
        proof: Any = None,
    ) -> Grant | None:
        from .rewriting import rewrite

        lock = self.key(name)
        return self.call(lambda z: rewrite(self.verbs, z, lock, token, ttl, owner, mark))

    def release(self, name: str, token: str, proof: Any = None) -> bool:
        return self.call(lambda z: self.verbs.release(z, self.key(name), token))

    def abandon(self, name: str, token: str) -> bool | None:
        return self.call(lambda z: self.verbs.abandon(z, self.key(name), token))

    def clear(self, name: str, token: str | None = None) -> bool:
        return self.call(lambda z: self.verbs.clear(z, self.key(name), token))

    def clear_foreign(self, name: str, digest: str) -> bool:
        return self.call(lambda z: self.verbs.clear(z, self.key(name), None, digest))

    def next_fence(self) -> int | None:
        # No lease is older than this transaction.
        return 1 + int(self.call(lambda z: z.write_clock().mzxid))

    # ------------------------------------------------------------------------ wait queue

    def waiter(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> ZooKeeperWaiter:
        from .waiter import ZooKeeperWaiter

        return ZooKeeperWaiter(self, name, token, ttl, owner)

    def waiters(self, name: str, limit: int = 100) -> builtins.list[Owner]:
        from .records import Lease

        lock = self.key(name)

        def waiting(z: Requests) -> builtins.list[Owner]:
            children = z.children(lock)[1:][:limit]
            nodes = z.nodes([f"{lock}/{child}" for child in children])
            return [Lease(node).as_waiter() for node in nodes if node is not None]

        return self.call(waiting)

    # ------------------------------------------------------------------------ look

    def get(self, name: str) -> LockInfo | None:
        return self.call(lambda z: self._held(z, name))

    def held(self, names: Sequence[str]) -> set[str]:
        def asked(z: Requests) -> Sequence[str]:
            z.client.sync_async(z.prefix)  # Its server may lag, and not know of a lease.
            return names

        return {name for name, _ in self._infos(asked)}

    def list(self, prefix: str = "", limit: int | None = None, offset: int = 0) -> list[LockInfo]:
        found = [info for _, info in self._locks(prefix)]
        found.sort(key=lambda info: (math.inf if info.ttl is None else info.ttl, info.name))
        return found[offset:][:limit]

    def count(self, prefix: str = "") -> int:
        return len(self._locks(prefix))

    def scan(self, prefix: str = "") -> Iterator[LockInfo]:
        return (info for _, info in self._locks(prefix))

    def _locks(self, prefix: str) -> builtins.list[tuple[str, LockInfo]]:
        from .listing import names_below

        return self._infos(lambda z: names_below(z, prefix))

    def _infos(
        self, names: Callable[[Requests], Sequence[str]]
    ) -> builtins.list[tuple[str, LockInfo]]:
        from .listing import infos_of

        def infos(z: Requests) -> builtins.list[tuple[str, LockInfo]]:
            keys = {name: self.key(name) for name in names(z)}
            return [*infos_of(z, self.verbs, keys, self.alias)]

        return self.call(infos)

    def check(self) -> Iterable[Finding]:
        self.get("check")
        session = self._connection.link().session
        wanted = self.options.session_seconds
        if session.timeout and abs(session.timeout - wanted) > 0.01:
            yield Finding(
                "session",
                False,
                f"its sessions end after {session.timeout:g} s, not {wanted:g} s: the server's "
                "limits are minSessionTimeout and maxSessionTimeout, 2 and 20 ticks by default",
                "Set SESSION_TIMEOUT to what the server grants, or change the server's limits.",
            )

    # ------------------------------------------------------------------------ notes

    def get_note(self, key: str) -> str | None:
        return self.call(lambda z: self._notes.get(z, key))

    def set_note(self, note: Note) -> None:
        self.call(lambda z: self._notes.set(z, note.key, note.text, note.ttl))

    def reserve(
        self,
        key: str,
        text: str,
        ttl: float,
        *,
        over: str = "",
        unless_held: str | None = None,
    ) -> str | LockInfo | None:
        def reserved(z: Requests) -> str | LockInfo | None:
            held = partial(self._held, z, unless_held)
            return self._notes.reserve(z, key, text, ttl, over, held)

        return self.call(reserved)

    def unreserve(self, key: str, text: str) -> bool:
        return self.call(lambda z: self._notes.unreserve(z, key, text))

    def reservations(self, prefix: str = "", limit: int | None = None) -> builtins.list[Reserved]:
        return self.call(lambda z: self._notes.reservations(z, prefix, limit))

    def _held(self, z: Requests, name: str | None) -> LockInfo | None:
        if name is None:
            return None
        from .listing import head_of

        first = self.verbs.first(z, self.key(name))
        if first is None:
            return None
        return self._info(name, first, head_of(z, self.key(name), first.children))

    def _info(self, name: str, first: First, head: Lease | None = None) -> LockInfo:
        waiters = len(first.children) - 1
        return first.lease.info(name, self.alias, self.key(name), first.left, waiters, head)
