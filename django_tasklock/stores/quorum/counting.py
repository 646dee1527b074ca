"""What the answers of the members come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from ..._values.lock_info import LockInfo
from ..._values.owner import Owner

__all__ = ["fence_votes", "identity", "leading", "majority_of", "merged", "verdict"]

Identity = tuple[str | None, str | None]
"""a lease's token; the digest of a value that somebody else set"""


def majority_of(size: int) -> int:
    """How many of ``size`` members are a majority."""
    return size // 2 + 1


def verdict(yes: int, no: int, size: int) -> bool | None:
    """What a majority says; None: not known, because of the members that have not answered."""
    if yes >= majority_of(size):
        return True
    return False if no > size - majority_of(size) else None


def identity(info: LockInfo) -> Identity:
    """What distinguishes a holder from others."""
    return info.token, info.digest


def leading(held: Iterable[LockInfo | None]) -> tuple[Identity, int] | None:
    """The holder with the most members, and how many these are; of several, the same one for
    everybody who asks."""
    votes = Counter(identity(info) for info in held if info is not None)
    if not votes:
        return None
    most = max(votes.values())
    return min((who for who in votes if votes[who] == most), key=_order), most


def _stage(owner: Owner) -> tuple[int, bool]:
    """What is greater the later a lease had this owner: it is adopted, marked, adopted again."""
    return owner.adoptions or 0, owner.mark is not None


def _order(who: Identity) -> tuple[str, str]:
    return who[0] or "", who[1] or ""


def fence_votes(held: Iterable[LockInfo | None]) -> int:
    """How many members agree on the fence of the holder; all of them, if it has none."""
    fences = Counter(info.fence for info in held if info is not None)
    return max(fences.values(), default=0)


def merged(
    who: Identity, held: Iterable[LockInfo | None], unknown: int, size: int, store: str
) -> LockInfo:
    """The holder as one lock of the quorum.

    Its ttl is the time until fewer members than a majority have the lease. Those that have not
    answered (``unknown``) may have it for longer than all others.
    """
    mine = [info for info in held if info is not None and identity(info) == who]
    mine.sort(key=lambda info: float("inf") if info.ttl is None else info.ttl, reverse=True)
    last = mine[min(max(1, majority_of(size) - unknown), len(mine)) - 1]
    owners = Counter(info.owner for info in mine)
    fences = Counter(info.fence for info in mine if info.fence is not None)
    begun = [info.acquired_at for info in mine if info.acquired_at is not None]
    return replace(
        last,
        # Without the key that one member has made of it.
        name=str(last.name),
        store=store,
        # A member may have missed that the lease was detached, or adopted.
        owner=max(owners, key=lambda owner: (*_stage(owner), owners[owner])),
        # A member that was late, or got the lease again at a renewal, may have another one.
        fence=max(fences, key=lambda fence: (fences[fence], fence)) if fences else None,
        acquired_at=min(begun) if begun else None,
        waiters=None,
    )
