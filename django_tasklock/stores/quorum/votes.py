"""What the answers of a quorum's members come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ..records import Entry, left_of

__all__ = ["leading", "majority_of", "merged"]


def majority_of(size: int) -> int:
    """Return how many of ``size`` members are a majority."""
    return size // 2 + 1


def leading(entries: Iterable[Entry | None]) -> Sequence[Entry]:
    """Return the entries of the holder that most members have, a lease or other code's value; of
    several, the same one for everybody who asks. Empty if no member has any."""
    found: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if entry is not None:
            token = "" if entry.record is None else entry.record["token"]
            found.setdefault((token, entry.digest or ""), []).append(entry)
    return max(found.items(), key=lambda each: (len(each[1]), each[0]), default=("", ()))[1]


def merged(same: Sequence[Entry], name: str, unknown: int, size: int) -> Entry:
    """Return what members say of one holder as one entry.

    It ends when fewer members than a majority of ``size`` have it: those that have not answered,
    ``unknown``, may have it for longer than all others. Its fence is one that a majority has.
    """
    at = min(max(1, majority_of(size) - unknown), len(same)) - 1
    records = [entry.record for entry in same if entry.record is not None]
    versions = Counter(record.get("version") for record in records)
    # Some may have missed that the lease was detached, or adopted.
    latest = max(
        records,
        key=lambda record: (versions[record.get("version")], record.get("at", 0)),
        default=None,
    )
    return same[0]._replace(
        name=name,
        record=latest,
        left=sorted(same, key=left_of, reverse=True)[at].left,
        began=min((entry.began for entry in same if entry.began is not None), default=None),
        fence=sorted((entry.fence or 0 for entry in same), reverse=True)[at] or None,
        waiters=None,
        waiting_since=None,
    )
