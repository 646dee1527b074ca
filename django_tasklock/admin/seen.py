"""A lease as a page showed it, on its way from the page back to the store."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from django.core.exceptions import BadRequest

from ..arguments import checked_name
from ..lease import LockInfo
from ..models import Lock
from ..service import LockService, locks

__all__ = ["Picked", "SeenLease", "encode_many", "identity", "row_of"]

NOT_OURS = "That is not a lease that a page of this admin has shown."


def row_of(info: LockInfo) -> Lock:
    """The lock of ``info`` as the admin's pages take it."""
    row = Lock(id=Lock.id_of(info.store, info.name), name=info.name, store=info.store)
    row.info = info
    return row


def identity(lock: Lock) -> str:
    """The same for one lease as long as it lasts, and another for its successor.

    Made of the token without telling it: who may only look gets no proof of a lease.
    """
    assert lock.info is not None
    proof = lock.info.token or lock.info.digest or ""
    return f"{hashlib.sha256(proof.encode()).hexdigest()[:16]} {lock.pk}"


@dataclass(frozen=True, slots=True)
class SeenLease:
    """What a check box and the clear form carry: enough to clear this very lease, or none."""

    store: str
    token: str | None
    name: str
    digest: str | None = None
    """of the value that somebody else set; None where the store tells none"""

    @classmethod
    def of(cls, info: LockInfo) -> SeenLease:
        return cls(info.store, info.token, info.name, info.digest)

    def is_of(self, info: LockInfo) -> bool:
        """Whether it is what holds the lock."""
        if info.token is None:
            return self.token is None and self.digest == info.digest
        return self.token == info.token

    @property
    def service(self) -> LockService:
        return locks.using(self.store)

    def parts(self) -> list[str | None]:
        return [self.store, self.token, self.name, self.digest]

    def encode(self) -> str:
        return to_json(self.parts())

    @classmethod
    def decode(cls, text: str) -> SeenLease:
        """Raises `BadRequest` where ``text`` was not made by `encode`."""
        return cls._from_parts(from_json(text))

    @classmethod
    def decode_many(cls, text: str) -> list[SeenLease]:
        """Raises `BadRequest` where ``text`` was not made by `encode_many`."""
        many = from_json(text)
        if not isinstance(many, list):
            raise BadRequest(NOT_OURS)
        return [cls._from_parts(parts) for parts in many]

    @classmethod
    def _from_parts(cls, parts: object) -> SeenLease:
        match parts:
            case [str(store), str(token), str(name)]:
                digest = None
            case [str(store), (str() | None) as token, str(name), (str() | None) as digest]:
                pass
            case _:
                raise BadRequest(NOT_OURS)
        with contextlib.suppress(ValueError):
            return cls(store, token, checked_name(name), digest)
        raise BadRequest(NOT_OURS)


def encode_many(leases: Iterable[SeenLease]) -> str:
    """One form field for any number of leases: forms are limited in the number of fields."""
    return to_json([lease.parts() for lease in leases])


def to_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def from_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BadRequest(NOT_OURS) from None


@dataclass
class Picked:
    """Leases that were chosen on a page, compared with what their stores know now."""

    held: list[Lock] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """names: another lease holds the lock now"""
    ended: list[str] = field(default_factory=list)
    """names: nothing holds the lock any more"""

    @classmethod
    def from_boxes(cls, boxes: Iterable[str]) -> Picked:
        """Asks for each lock by itself. Raises `TaskLockError`, and `BadRequest`."""
        picked = cls()
        for seen in map(SeenLease.decode, boxes):
            info = seen.service.get(seen.name)
            if info is None:
                picked.ended.append(seen.name)
            elif not seen.is_of(info):
                picked.changed.append(seen.name)
            else:
                picked.held.append(row_of(info))
        return picked
