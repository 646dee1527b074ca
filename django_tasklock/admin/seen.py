"""A lease as a page showed it, sent back with a form."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from django.core.exceptions import BadRequest

from .._engine.clear_many import get_seen
from .._engine.service import LockService, locks
from .._values.arguments import checked_name
from .._values.lock_info import LockInfo
from ..models import Lock
from ..operators.clearing import is_seen, token_digest

__all__ = ["SeenLease", "SelectedLeases", "encode_many", "identity", "row_of"]

NOT_OURS = "That is not a lease that a page of this admin has shown."


def row_of(info: LockInfo) -> Lock:
    """Return the model instance of a lock, for the admin's pages."""
    row = Lock.named(info.store, info.name)
    row.info = info
    return row


def identity(lock: Lock) -> str:
    """Return an id of the lease: the same while it lasts, another for the next lease of the lock.

    It is made of the token but does not reveal it: a user who may only look gets no proof of a
    lease.
    """
    assert lock.info is not None
    return f"{SeenLease.of(lock.info).digest or ''} {lock.pk}"


@dataclass(frozen=True, slots=True)
class SeenLease:
    """The value of a check box and of the clear form: enough to clear this lease and no other."""

    store: str
    token: str | None
    name: str
    digest: str | None = None
    """of the lease's token, or of the value that other code set; None where the store has none"""

    @classmethod
    def of(cls, info: LockInfo) -> SeenLease:
        """Return the lease that holds the lock of ``info``, without its token: whoever may only
        look sees the page too, if the site has an action for all models."""
        digest = info.digest if info.token is None else token_digest(info.token)
        return cls(info.store, None, info.name, digest)

    def is_of(self, info: LockInfo) -> bool:
        """Whether it is what holds the lock."""
        if info.token is None and self.digest != info.digest:
            return False
        return is_seen(info, self.token, self.digest)

    @property
    def service(self) -> LockService:
        """The locks of its store. Raises `InvalidLockConfig` for an unknown alias."""
        return locks.using(self.store)

    def parts(self) -> list[str | None]:
        """Return the fields as JSON-able values."""
        return [self.store, self.token, self.name, self.digest]

    def encode(self) -> str:
        """Return the lease as the text of one form field."""
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
    """Return the value as compact JSON."""
    return json.dumps(value, separators=(",", ":"))


def from_json(text: str) -> object:
    """Return the value of a form field. Raises `BadRequest` for what is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BadRequest(NOT_OURS) from None


@dataclass
class SelectedLeases:
    """Leases that were chosen on a page, compared with what their stores know now."""

    held: list[Lock] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """names: another lease holds the lock now"""
    ended: list[str] = field(default_factory=list)
    """names: nothing holds the lock any more"""

    @classmethod
    def from_boxes(cls, boxes: Iterable[str]) -> SelectedLeases:
        """Asks each store once. Raises `TaskLockError`, and `BadRequest`."""
        selected = cls()
        by_store: dict[str, list[SeenLease]] = {}
        for seen in map(SeenLease.decode, boxes):
            by_store.setdefault(seen.store, []).append(seen)
        for leases in by_store.values():
            found = get_seen(leases[0].service.store, [(seen.name, seen.is_of) for seen in leases])
            for seen, info in zip(leases, found, strict=True):
                if info is None:
                    selected.ended.append(seen.name)
                elif not seen.is_of(info):
                    selected.changed.append(seen.name)
                else:
                    selected.held.append(row_of(info))
        return selected
