"""Notes and reservations on a cluster, where a note and a lock may be in different slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._values.lock_info import LockInfo
from ..base import LISTED_KEY_PREFIX, Grant, Note, Refusal, Reserved
from ..redis.leases import RedisLeases
from ..redis.notes import (
    RESERVATION_KEYS,
    RESERVATIONS_PER_SCRIPT,
    decoded_keys,
    live_of,
    texts_call,
)
from ..redis.server_client import Call
from .buckets import ClusterKeyspace
from .client import ClusterClient

__all__ = ["ClusterNotes"]


class ClusterNotes(RedisLeases):
    """The part of `RedisClusterStore` that keeps notes and reservations.

    Each is in the slot that its key says, so that it is found without the name of a lock. A
    reservation whose key ends in the name of its lock is in the slot of that lock: `reserve` looks
    at the lock in the same step then. Any other note costs a round trip of its own.
    """

    client: ClusterClient
    keyspace: ClusterKeyspace

    def ask(
        self,
        name: str,
        value: bytes,
        ttl_ms: int,
        member: bytes = b"",
        before: bytes = b"",
        number: bytes = b"",
        note: Note | None = None,
        floor: int | None = None,
    ) -> Grant | tuple[Refusal, int, bytes, int]:
        if note is not None and not self.keyspace.are_together(name, note.key):
            note = None  # The caller writes it.
        return super().ask(name, value, ttl_ms, member, before, number, note, floor)

    def release_with_note(self, name: str, token: str, proof: Any, note: Note | None) -> bool:
        if note is not None and not self.keyspace.are_together(name, note.key):
            # Before the release: the next holder may be a redelivery, which looks for the note.
            if self._value_of(name, token) is not None:
                self.set_note(note)
            note = None
        return super().release_with_note(name, token, proof, note)

    def reserve(
        self,
        key: str,
        text: str,
        ttl: float,
        *,
        over: str = "",
        unless_held: str | None = None,
    ) -> str | LockInfo | None:
        if unless_held is not None and not self.keyspace.are_together(unless_held, key):
            if (lock := self.get(unless_held)) is not None:
                there = self.get_note(key)
                if there != text:
                    return lock if there in (None, over) else there
            unless_held = None
        return super().reserve(key, text, ttl, over=over, unless_held=unless_held)

    def reservations(self, prefix: str = "", limit: int | None = None) -> list[Reserved]:
        found: list[Reserved] = []
        begin = LISTED_KEY_PREFIX + prefix
        size = RESERVATIONS_PER_SCRIPT if limit is None else min(limit, RESERVATIONS_PER_SCRIPT)
        # For each bucket the rank from which the next page begins, and how many it has given.
        at = dict.fromkeys(self.keyspace.buckets, 0) if size > 0 else {}
        given = dict.fromkeys(at, 0)
        while at:
            buckets = list(at)
            pages = self.client.run_many(
                [
                    Call(RESERVATION_KEYS, (bucket.reserved,), (at[bucket], size, begin))
                    for bucket in buckets
                ]
            )
            keys = [decoded_keys(self.keyspace, members) for _, members in pages]
            some = [(bucket, own) for bucket, own in zip(buckets, keys, strict=True) if own]
            texts = self.client.run_many([texts_call(bucket, own) for bucket, own in some])
            live = {
                bucket: live_of(own, flat) for (bucket, own), flat in zip(some, texts, strict=True)
            }
            for bucket, (read, _), own in zip(buckets, pages, keys, strict=True):
                here: Sequence[Reserved] = live.get(bucket, ())
                found += here
                given[bucket] += len(here)
                # The script has removed those from the index that are over.
                at[bucket] += read - (len(own) - len(here))
                if read < size or (limit is not None and given[bucket] >= limit):
                    del at[bucket]
        found.sort(key=lambda each: float("inf") if each.ttl is None else each.ttl)
        return found[:limit]
