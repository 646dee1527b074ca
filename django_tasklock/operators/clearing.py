"""Clearing a lease as it was seen, and never the next one of the same lock."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from .._engine.clear_many import clear_many, get_seen
from .._engine.service import LockService
from .._values.keyed import key_of
from .._values.lock_info import LockInfo

__all__ = [
    "LOCKS_PER_CLEAR",
    "Cleared",
    "Outcome",
    "Seen",
    "clear_all_seen",
    "clear_seen",
    "is_seen",
    "token_digest",
]

LOCKS_PER_CLEAR = 500
"""so many are looked at, logged and cleared together"""


class Outcome(Enum):
    """The result of clearing one lease. The value is the word that the command prints."""

    CLEARED = "cleared"
    CHANGED_HANDS = "changed hands"
    NOT_LOCKED = "not locked"


def token_digest(token: str) -> str:
    """Return what tells a lease from all others, but proves nothing and clears nothing: for a page
    that a user sees who may only look."""
    return hashlib.sha256(token.encode()).hexdigest()[:32]


def is_seen(info: LockInfo, token: str | None, digest: str | None) -> bool:
    """Whether the holder ``info`` is the one that was seen.

    It was seen as a lease with this ``token``, as a lease whose token has this ``digest``, or as a
    key that other code set, whose value has this ``digest`` (None: any value).
    """
    if token is not None or info.token is None:
        return token == info.token and (token is not None or digest in (None, info.digest))
    return digest == token_digest(info.token)


def clear_seen(
    service: LockService, name: str, token: str | None, digest: str | None = None, *, by: str
) -> tuple[Outcome, LockInfo | None]:
    """Clear the lock ``name`` if it is still held as it was seen: see `is_seen`.

    ``by`` says for the log who clears. Returns the outcome, and the holder before it (None: not
    locked). Raises `StoreUnavailable`.
    """
    holder = service.get(name)
    if holder is None:
        return Outcome.NOT_LOCKED, None
    if not is_seen(holder, token, digest):
        return Outcome.CHANGED_HANDS, holder
    if service.clear(name, holder.token, by=by, digest=holder.digest):
        return Outcome.CLEARED, holder
    # The lease ended between the two calls; the lock may have another holder now.
    gone = service.get(name) is None
    return (Outcome.NOT_LOCKED if gone else Outcome.CHANGED_HANDS), holder


class Seen(NamedTuple):
    """A lock as an operator has seen it held; `is_seen` says what the proofs are."""

    name: str
    token: str | None = None
    digest: str | None = None

    def is_of(self, holder: LockInfo) -> bool:
        """Whether ``holder`` is the lease that was seen."""
        return is_seen(holder, self.token, self.digest)


class Cleared(NamedTuple):
    """What became of one lock, and its holder before that (None: it was not locked)."""

    name: str
    outcome: Outcome
    holder: LockInfo | None


def clear_all_seen(
    service: LockService,
    seen: Sequence[Seen],
    *,
    by: str,
    before: Callable[[Sequence[LockInfo]], object] = tuple,
) -> list[Cleared]:
    """`clear_seen` for at most `LOCKS_PER_CLEAR` locks together, each of them at most once.

    A store that can do so takes two round trips for all of them: one to look, and one to clear.
    ``before`` is called between the two, with the holders that are to be cleared: whoever keeps a
    record of clears writes it there. Raises `StoreUnavailable`; if ``before`` was called, some may
    be cleared then.
    """
    holders = get_seen(service.store, [(each.name, each.is_of) for each in seen])
    # With the key that the holder has.
    seen = [
        each if holder is None else each._replace(name=holder.name)
        for each, holder in zip(seen, holders, strict=True)
    ]
    wanted = [
        holder
        for each, holder in zip(seen, holders, strict=True)
        if holder is not None and each.is_of(holder)
    ]
    before(wanted)
    cleared = clear_many(service, wanted, by=by)
    outcomes = {
        key_of(holder.name): Outcome.CLEARED
        for holder, done in zip(wanted, cleared, strict=True)
        if done
    }
    # The others ended between the two calls; the locks may have other holders now.
    missed = {key_of(holder.name) for holder in wanted} - outcomes.keys()
    again = [each for each in seen if key_of(each.name) in missed]
    now = service.store.get_many([each.name for each in again]) if again else []
    for each, holder in zip(again, now, strict=True):
        if holder is None:
            outcomes[key_of(each.name)] = Outcome.NOT_LOCKED
        elif each.is_of(holder):
            # The same lease with another record: it was detached or adopted meanwhile.
            outcomes[key_of(each.name)], _ = clear_seen(service, *each, by=by)
    return [
        Cleared(each.name, outcomes.get(key_of(each.name), _if_not_cleared(holder)), holder)
        for each, holder in zip(seen, holders, strict=True)
    ]


def _if_not_cleared(holder: LockInfo | None) -> Outcome:
    return Outcome.NOT_LOCKED if holder is None else Outcome.CHANGED_HANDS
