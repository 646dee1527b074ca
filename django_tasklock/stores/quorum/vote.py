"""How the members of a quorum vote on changes, and what most of them say is under a name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import TypeAlias

from ..records import Change, Done, Entry, Record, left_of, undoing
from .members import Answers, Member

# A holder counts its ttl from before the call, by its own clock. A member counts from when it is
# called, by its own, which may be faster by this share. So it keeps a lease for so much longer, and
# for the rounding of a server that counts in milliseconds.
DRIFT, ROUNDING_SECONDS = 0.01, 0.002

# What each member has under one name.
Column: TypeAlias = Iterable[Entry | None]


def kept_for(ttl: float) -> float:
    """Return for how many seconds a member keeps a lease of this ttl."""
    return ttl + ttl * DRIFT + ROUNDING_SECONDS


class Vote:
    """What the members say to some changes: each has made all of them, has refused, or failed."""

    def __init__(self, changes: Sequence[Change], answers: Answers, majority: int) -> None:
        self.changes, self.majority = changes, majority
        given: Mapping[Member, Done] = answers.given
        self.made = {member: done for member, done in given.items() if done.made}
        self.refused = {member: done for member, done in given.items() if not done.made}
        self.failed = answers.failed
        self.answered = len(given) >= majority
        # What removes the records that are new with the changes.
        self.new = undoing(changes)

    @property
    def carried(self) -> bool:
        """A majority has made the changes. Or a member has removed what a majority may have had,
        with the members that have failed; none has it any more."""
        count = len(self.made)
        if count and self.answered and all(each.record is None for each in self.changes):
            count += len(self.failed)
        return count >= self.majority

    @property
    def decided(self) -> bool:
        """If it is not carried: that is an answer, and no outage. A lease is lost whatever the
        members that failed would say. But a new one is refused if any that has answered refuses."""
        return self.answered if self.new else len(self.refused) >= self.majority

    @property
    def split(self) -> bool:
        """If it is not carried: no other caller has a majority either. Several have asked for the
        same at the same moment, and have split the members among them."""
        columns = _columns(self.refused)
        return bool(self.new) and all(len(_leading(each)) < self.majority for each in columns)

    def entries(self, answers: Mapping[Member, Done]) -> list[Entry | None]:
        """What most of some members say is under the names of the changes."""
        unknown = len(self.made) + len(self.refused) + len(self.failed) - len(answers)
        columns = zip(self.changes, _columns(answers), strict=True)
        enough = self.majority - unknown
        return [entry_of(change.name, column, enough) for change, column in columns]


def _columns(answers: Mapping[Member, Done]) -> Iterable[Column]:
    return zip(*(done.entries for done in answers.values()), strict=True)


def _leading(column: Column) -> Sequence[Entry]:
    """Return the entries of the holder that most members have, a lease or other code's value; of
    several, the same one for everybody who asks. Empty if no member has any."""
    found: dict[tuple[str, str], list[Entry]] = {}
    for entry in column:
        if entry is not None:
            found.setdefault((entry.token or "", entry.digest or ""), []).append(entry)
    votes = [(len(same), holder) for holder, same in found.items()]
    return found[max(votes)[1]] if votes else ()


def entry_of(name: str, column: Column, enough: int, least: int = 1) -> Entry | None:
    """Return what most members say is under a name.

    It ends when fewer than ``enough`` have it, and so many have its fence, or a greater one.

    Args:
        column: what the members have there.
        enough: so many are a majority with those that have not answered, which may have it for
            longer than all others.
        least: if fewer members have the same, it is nothing.
    """
    same = _leading(column)
    if len(same) < least:
        return None
    # The greatest that so many members have, or more.
    last = min(max(1, enough), len(same)) - 1
    left = sorted(map(left_of, same), reverse=True)[last]
    fence = sorted((each.fence or 0 for each in same), reverse=True)[last]
    record = _latest([each.record for each in same if each.record is not None])
    began = min((each.began for each in same if each.began is not None), default=None)
    if record is not None:  # What is left for its holder: see `kept_for`.
        left = max(0.0, (left - ROUNDING_SECONDS) / (1 + DRIFT))
    ends = None if left == inf else left
    return Entry(name, record, ends, fence or None, same[0].digest, began)


def _latest(records: Sequence[Record]) -> Record | None:
    """Return the record that most have: some may have missed that a lease was detached, or adopted.
    None: there are none."""
    versions = Counter(record.get("version") for record in records)

    def rank(record: Record) -> tuple[int, float]:
        return versions[record.get("version")], record.get("at", 0)

    return max(records, key=rank, default=None)
