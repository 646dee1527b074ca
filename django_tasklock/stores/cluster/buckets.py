"""Which keys are in one slot of the cluster: names are spread over buckets, each with a hash tag.

A script needs all of its keys in one slot. So a lock is in the slot of its bucket, together with
its wait queue and what the bucket has once: an index, fences and reservations.
"""

from __future__ import annotations

from binascii import crc_hqx

from ...exceptions import InvalidLockConfig
from ..redis.keyspace import Keyspace

__all__ = ["BUCKETS", "BUCKET_SLOTS", "ClusterKeyspace", "bucket_of", "bucket_of_key"]

SLOTS = 16384
"""of every cluster"""
BUCKETS = 64
"""not to be changed: two processes that disagree about it would not exclude each other. A list
reads the index of each bucket; the locks can be on as many masters as there are buckets."""


def _slot_of(text: bytes) -> int:
    # Redis's CRC16.
    return crc_hqx(text, 0) % SLOTS


def _tags() -> tuple[bytes, ...]:
    """For each bucket the smallest number whose slot is in the bucket's part of all slots, so that
    masters with as many slots have as many buckets."""
    tags: dict[int, bytes] = {}
    number = 0
    while len(tags) < BUCKETS:
        tag = b"%d" % number
        tags.setdefault(_slot_of(tag) * BUCKETS // SLOTS, tag)
        number += 1
    return tuple(tags[bucket] for bucket in range(BUCKETS))


TAGS = _tags()
BUCKET_SLOTS = tuple(map(_slot_of, TAGS))
"""the slot of each bucket, in ascending order"""
_by_tag = {tag: bucket for bucket, tag in enumerate(TAGS)}


def bucket_of(name: str) -> int:
    """The bucket of a lock."""
    return crc_hqx(name.encode("utf-8", "surrogateescape"), 0) % BUCKETS


def bucket_of_key(key: bytes) -> int:
    """The bucket of one of our keys. Raises `LookupError` or `ValueError` for any other key."""
    start = key.index(b"{") + 1
    return _by_tag[key[start : key.index(b"}", start)]]


class ClusterKeyspace(Keyspace):
    """The keys of one store in a cluster: each bucket has a `Keyspace` of its own.

    A note is in the bucket of the last word of its key. For the reservation of a job that is the
    name of the job's lock, so that both can be in one script. There is no index and no hash of
    fences for the whole store; the history is in the first bucket.
    """

    prepends = True

    def __init__(self, prefix: str, alias: str) -> None:
        """``prefix`` is the KEY_PREFIX of the store ``alias``."""
        if "{" in prefix or "}" in prefix:
            raise InvalidLockConfig(
                f"the KEY_PREFIX of the lock store {alias!r} is {prefix!r}: on a cluster it has no "
                "braces, with which the store says in which slot a key is"
            )
        start = f"{prefix}:" if prefix else ""
        self.buckets = tuple(
            Keyspace(str, f"{start}{{{tag.decode()}}}", prepends=True) for tag in TAGS
        )
        self.prefixes = tuple(bucket.channels for bucket in self.buckets)
        """what the names of each bucket's channels begin with"""
        self.lock_prefix = start
        self.history = self.buckets[0].history

    def of(self, name: str) -> Keyspace:
        """The keys of a lock's bucket."""
        return self.buckets[bucket_of(name)]

    def key(self, name: str) -> str:
        return self.of(name).key(name)

    def keys(self, name: str) -> tuple[bytes, bytes, bytes, bytes]:
        return self.of(name).keys(name)

    def cleared_key(self, name: str) -> bytes:
        return self.of(name).cleared_key(name)

    def note_key(self, key: str) -> bytes:
        return self._of_note(key).note_key(key)

    def note_keys(self, key: str) -> tuple[bytes, bytes]:
        return self._of_note(key).note_keys(key)

    def are_together(self, name: str, note: str) -> bool:
        """Whether a lock and a note are in one bucket."""
        return self.of(name) is self._of_note(note)

    def type_of(self, key: bytes) -> bytes | None:
        return self.buckets[bucket_of_key(key)].type_of(key)

    def tells_locks_apart(self) -> bool:
        return True

    def _of_note(self, key: str) -> Keyspace:
        return self.of(key.rpartition(" ")[2])
