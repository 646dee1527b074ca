"""Reading pickled records quickly: all but their ends are mostly the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from struct import unpack

from ..._values.owner import Owner
from ..record import MAX_TIMESTAMP_SECONDS, Record

__all__ = ["RecordHeads"]

MAX_HEADS = 2000
"""that are kept: of each process, thread and task there is one"""
LONGEST_HEAD = 1024
"""bytes"""

PROTOCOLS = b"\x80\x04", b"\x80\x05"
FRAME_BYTES = 11
"""PROTO and FRAME, with which a pickle begins: the length of what follows"""
TASK_ID = b"\x8c\x07task_id\x94\x8c"
"""the key, and what comes before the length of a short text"""
END_BYTES = 49
_end = re.compile(
    rb"\x8c\x05token\x94\x8c\x16([A-Za-z0-9_-]{22})\x94\x8c\x02at\x94G(.{8})u\.", re.DOTALL
).fullmatch


class RecordHeads:
    """Reads records of which everything but the task's id, the token and the time was read before.

    The leases of one process and task have the same bytes up to there. These bytes, the head, are
    kept where the strict reader has found a record, and the answer for another end is what it would
    find, in a third of its time. (A page of locks with all fields is there a third sooner.)

    In a record, the bytes that we look for stand between two fields only: in a text they are no
    UTF-8, they are longer than a number, and a number is never a key, so that no value is taken for
    one. A text may end with their first part, such as a stranger's key "\u014c\x07task_id": so a
    head is kept only if what was looked for is what the strict reader has found. What comes before
    the end means the same whatever follows.
    """

    def __init__(self, read: Callable[[bytes], Record | None]) -> None:
        """``read`` is the strict reader, of flat pickles."""
        self._read = read
        self._heads: dict[bytes, Record] = {}

    def record(self, value: bytes) -> Record | None:
        """What the strict reader returns."""
        size = len(value)
        end = size - END_BYTES
        found = _end(value, max(0, end))
        if found is None or value[:2] not in PROTOCOLS or value[2:FRAME_BYTES] != _frame(size):
            return self._read(value)
        task_id = None
        start = value.rfind(TASK_ID, FRAME_BYTES, end) + len(TASK_ID) + 1
        if start > FRAME_BYTES + len(TASK_ID):
            text = value[start : end - 1]
            if value[start - 1] != len(text) or value[end - 1 : end] != b"\x94":
                return self._read(value)
            task_id = text.decode("ascii", "replace")
            if not task_id.isprintable() or not text.isascii():
                return self._read(value)
            head = value[FRAME_BYTES : start - 1]
        else:
            head = value[FRAME_BYTES:end]
        at: float = unpack(">d", found[2])[0]
        known = self._heads.get(head)
        if known is None:
            return self._learn(value, head, (found[1].decode(), task_id, at))
        if not 0 <= at <= MAX_TIMESTAMP_SECONDS:
            return None
        _, owner, _, ttl, renew, ends, since = known
        if task_id is not None and task_id != owner.task_id:
            owner = _with_task_id(owner, task_id)
        return Record(found[1].decode(), owner, at, ttl, renew, ends, since)

    def _learn(self, value: bytes, head: bytes, looked_for: tuple[object, ...]) -> Record | None:
        record = self._read(value)
        if (
            record is not None
            and len(head) <= LONGEST_HEAD
            and looked_for == (record.token, record.owner.task_id, record.at)
        ):
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            self._heads[head] = record
        return record


def _frame(size: int) -> bytes:
    return b"\x95" + (size - FRAME_BYTES).to_bytes(8, "little")


def _with_task_id(owner: Owner, task_id: str) -> Owner:
    return Owner(
        owner.host, owner.pid, owner.task, task_id, owner.thread, owner.boot, owner.pidns,
        owner.start, owner.group, None, None, owner.mark, owner.slots, owner.waits_for,
        owner.adoptions, owner.inside,
    )  # fmt: skip
