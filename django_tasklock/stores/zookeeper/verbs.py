"""What the store does with a lock's nodes. For the worker threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from kazoo.exceptions import BadVersionError, NoNodeError, NotEmptyError

from ..._values import clock
from ..._values.owner import HELD_BY
from ..base import Extension, Grant
from .leases import Sightings, Taken
from .paths import token_of
from .records import FENCE, Lease, encoded, lasting, lease_record, taken
from .requests import Node, Requests
from .server_time import ServerTime

__all__ = ["First", "Verbs"]

HAND_OVER_SECONDS = 5.0
"""a waiter that has not taken the lock so long after it was its turn loses its position"""


class First(NamedTuple):
    """What holds a lock: the first of its children."""

    lease: Lease
    children: list[str]
    """all of them, in order"""
    left: float | None
    """seconds, as far as that is known; None for something that is not ours"""
    at_most: float | None
    """seconds after which it may be removed if it is not changed until then"""


class Verbs:
    """The verbs of one store.

    Args:
        time: the leader's, as far as this process knows it.
    """

    def __init__(self, time: ServerTime) -> None:
        self._time, self._sightings = time, Sightings()

    # ------------------------------------------------------------------------ acquire

    def acquire(
        self, z: Requests, lock: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> Grant | First:
        """Take the lock, or say what holds it."""
        children = z.children(lock) if z.again else z.children_if_any(lock)
        while True:
            asked = clock.now()
            if not children:
                record, missing = lease_record(token, owner, ttl), children is None
                node, children = z.join(
                    lock,
                    token,
                    encoded(record),
                    missing=missing,
                    # An operator's hold has no process, and outlives the one that made it.
                    ephemeral=HELD_BY not in owner,
                )
                if children and children[0] == node.child:
                    return self.granted(z, Taken(node.path, record, 0, asked + ttl), node.stat)
                # Somebody else was quicker. If that one is gone by now, this is the first node.
            first = self.first(z, lock)
            if first is None:
                children = []
            elif first.lease.token == token:
                # Asked again after a lost reply.
                grant = self.take(z, first.lease, ttl)
                if grant is not None:
                    return grant
                children = []
            else:
                self._remove(z, lock, token, first.children[1:])
                return first
            z.assert_in_time(lock)

    def take(self, z: Requests, lease: Lease, ttl: float) -> Grant | None:
        """Begin the lease of a node of ours that is the first one; None if that node is gone."""
        asked, node = clock.now(), lease.node
        record = taken(lease.fields, ttl)
        try:
            stat = z.got(z.client.set_async(node.path, encoded(record)))
        except NoNodeError:
            return None
        began = Taken(node.path, record, stat.version, asked + ttl)
        return self.granted(z, began, stat)._replace(started=asked)

    def granted(self, z: Requests, lease: Taken, stat: Any) -> Grant:
        """Look after a lease that has begun, or has become this process's."""
        self._time.learn(stat.mtime)
        z.link.leases.keep(lease.record["token"], lease)
        z.link.look_after(lease.ends)
        left = z.session.left if stat.ephemeralOwner else None
        return Grant(lease.record.get(FENCE, stat.czxid), proof=lease.path, left=left)

    # ------------------------------------------------------------------------ extend

    def extend(
        self, z: Requests, lock: str, token: str, ttl: float, path: str | None = None
    ) -> bool:
        """Make the lease last from now."""
        (answer,) = self.extend_many(z, [Extension(lock, token, ttl, path)])
        return answer

    def extend_many(self, z: Requests, batch: Sequence[Extension]) -> list[bool]:
        """`extend` for many leases; the names are the paths of the locks."""
        leases, asked = z.link.leases, clock.now()
        sent: list[tuple[Taken | None, dict[str, Any], Any]] = []
        for lock, token, ttl, _ in batch:
            mine = leases.get(token)
            if mine is None or not mine.path.startswith(f"{lock}/"):
                sent.append((mine, {}, None))
            elif mine.ends <= asked:
                # It is over. Its node is deleted by the thread that looks after leases.
                sent.append((mine, {}, None))
            else:
                record = lasting(mine.record, ttl)
                result = z.client.set_async(mine.path, encoded(record), mine.version)
                sent.append((mine, record, result))
        answers = []
        for (lock, token, ttl, _), (mine, record, result) in zip(batch, sent, strict=True):
            if mine is None or result is None:
                answers.append(mine is None and self._extend_anybodys(z, lock, token, ttl))
                continue
            try:
                stat = z.got(result)
            except NoNodeError:
                leases.drop(token)
                answers.append(False)
            except BadVersionError:
                # Extended by another process, or by a call that was cut off.
                answers.append(self._extend_anybodys(z, lock, token, ttl))
            else:
                self._time.learn(stat.mtime)
                mine.record, mine.version, mine.ends = record, stat.version, asked + ttl
                z.link.look_after(mine.ends)
                answers.append(True)
        return answers

    def _extend_anybodys(self, z: Requests, lock: str, token: str, ttl: float) -> bool:
        """`extend`, by the token alone. The lease is this process's responsibility then."""
        while True:
            asked, first = clock.now(), self.first(z, lock)
            if first is None or first.lease.token != token or first.lease.waiting:
                return False
            node, record = first.lease.node, lasting(first.lease.fields, ttl)
            try:
                stat = z.got(z.client.set_async(node.path, encoded(record), node.stat.version))
            except (BadVersionError, NoNodeError):
                z.assert_in_time(lock)
                continue
            self._time.learn(stat.mtime)
            z.link.leases.keep(token, Taken(node.path, record, stat.version, asked + ttl))
            z.link.look_after(asked + ttl)
            return True

    # ------------------------------------------------------------------------ release

    def release(self, z: Requests, lock: str, token: str) -> bool:
        """End the lease."""
        mine = z.link.leases.get(token)
        if mine is not None and mine.path.startswith(f"{lock}/"):
            # Of a node that is gone after a lost reply, in the same session, it was this lease's.
            held = z.delete(mine.path) or z.again
            z.link.leases.drop(token)
            return held and clock.now() < mine.ends
        first = self.first(z, lock)
        if first is None or first.lease.token != token or first.lease.waiting:
            return False
        return z.delete(first.lease.node.path) or z.again

    def clear(self, z: Requests, lock: str, token: str | None, digest: str | None = None) -> bool:
        """Remove what holds the lock; with a token or a digest only if it is that."""
        first = self.first(z, lock)
        if first is None or token not in (None, first.lease.token):
            return False
        if digest is not None and (first.lease.token is not None or first.lease.digest != digest):
            return False
        version = -1 if digest is None else first.lease.node.stat.version
        try:
            cleared = z.delete(first.lease.node.path, version)
        except (BadVersionError, NotEmptyError):
            return False  # Somebody else's node, which has changed, or is a folder of something.
        if first.lease.token is not None:
            z.link.leases.drop(first.lease.token)
        return cleared

    def abandon(self, z: Requests, lock: str, token: str) -> bool:
        """Remove whatever has this token. Returns whether it held the lock."""
        children = z.children(lock)
        held = bool(children) and token_of(children[0]) == token
        return self._remove(z, lock, token, children) and held

    def _remove(self, z: Requests, lock: str, token: str, children: Sequence[str]) -> bool:
        """Delete the nodes of this token."""
        ours = [child for child in children if token_of(child) == token]
        removed = [z.delete(f"{lock}/{child}") for child in ours]
        if removed:
            z.link.leases.drop(token)
        return any(removed)

    # ------------------------------------------------------------------------ look

    def first(self, z: Requests, lock: str) -> First | None:
        """What holds the lock; None if nothing does. What is over is removed."""
        while True:
            children = z.children(lock)
            if not children:
                return None
            node = z.node(f"{lock}/{children[0]}")
            if node is not None:
                first = self.judged(z, lock, Lease(node), children)
                if first.at_most is None or first.at_most > 0:
                    return first
                self.delete_unchanged(z, node)
            z.assert_in_time(lock)

    def delete_unchanged(self, z: Requests, node: Node) -> None:
        """Delete a node as it was read; leave it if it has changed: extended at the last moment."""
        with suppress(BadVersionError):
            z.delete(node.path, node.stat.version)

    def judged(self, z: Requests, lock: str, lease: Lease, children: list[str]) -> First:
        """How long what holds the lock lasts: see `leases`."""
        if lease.lasts is None:
            return First(lease, children, None, None)
        mine = z.link.leases.get(lease.token)
        node = lease.node
        if mine is not None and (mine.path, mine.version) == (node.path, node.stat.version):
            left = mine.ends - clock.now()
            return First(lease, children, max(0.0, left), left)
        lasts = HAND_OVER_SECONDS if lease.waiting else lease.lasts
        at_most = lasts - self._sightings.seconds(lock, lease.node.stat.mzxid)
        if lease.waiting:
            return First(lease, children, lease.lasts, at_most)
        left = lease.lasts - self._time.since(lease.node.stat.mtime)
        if not lease.node.stat.ephemeralOwner:
            # An operator's hold: perhaps nobody lives who has seen it from its beginning. So the
            # leader's time ends it.
            if left <= 0:
                self._time.learn(z.write_clock().mtime)
                left = lease.lasts - self._time.since(lease.node.stat.mtime)
            at_most = min(at_most, left)
        return First(lease, children, max(0.0, min(left, at_most)), at_most)
