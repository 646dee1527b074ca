"""The store of a quorum: a lock is held if a majority of several stores holds it (Redlock), and
how they vote."""

from __future__ import annotations

import builtins
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, ClassVar, TypeAlias

from ..._values.tokens import chance, new_token
from ...conf import StoreSettings
from ...exceptions import StoreUnavailable
from .. import stores
from ..base import BaseStore, Extension, Finding
from ..records import ANY, FREE, KEEP, Change, Done, Entry, Held, Record, is_note, left_of, undoing
from .members import MOST_WAITING, Answers, Member, call_all, members_of

LEAST_MEMBERS = 3
DEFAULT_LONGEST_TTL_SECONDS, DEFAULT_TIMEOUT_SECONDS = 300.0, 1.0
# How often the members vote when callers of the same moment have split them; and the longest pause
# before they vote again, which grows each time.
ATTEMPTS, PAUSE_SECONDS = 12, 0.01
# A holder counts its ttl from before the call, by its own clock. A member counts from when it is
# called, by its own, which may be faster by this share. So it keeps a lease for so much longer, and
# for the rounding of a server that counts in milliseconds.
DRIFT, ROUNDING_SECONDS = 0.01, 0.002

# What each member has under one name.
Column: TypeAlias = Iterable[Entry | None]


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
        # If it is not carried: that is an answer, and no outage. A lease is lost whatever the
        # members that failed would say. But a new one is refused if any that has answered refuses.
        self.decided = self.answered if self.new else len(self.refused) >= majority
        # A majority has made the changes. Or a member has removed what a majority may have had,
        # with the members that have failed; none has it any more.
        count = len(self.made)
        if count and self.answered and all(each.record is None for each in changes):
            count += len(self.failed)
        self.carried = count >= majority

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


class QuorumStore(BaseStore):
    """A lock is held if a majority of the members, which are stores of other aliases, holds it.

    All members are called at the same time. Of five, any two may be dead, cut off or silent; if a
    third is, no lock is granted, and calls raise `StoreUnavailable`, which says why for each.

    What it promises depends on the clocks of the members and of the hosts: docs/howto/quorum.md.
    Waiters poll, and get the lock in no order.
    """

    puts_together = False
    known_options: ClassVar[frozenset[str]] = frozenset({"STORES", "LONGEST_TTL", "TIMEOUT"})

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self.timeout = settings.seconds("TIMEOUT", DEFAULT_TIMEOUT_SECONDS)
        if settings.options.get("LONGEST_TTL", 0) is not None:
            self.longest_ttl = settings.seconds("LONGEST_TTL", DEFAULT_LONGEST_TTL_SECONDS)
            self.check_lasts("its TTL", settings.ttl, settings.wrong)
        self._stores = [stores[alias] for alias in self._aliases()]
        for store in self._stores:
            if not (store.atomic_release and store.fences_are_times):
                raise settings.wrong(
                    f"it cannot have the member {store.alias!r}: a {type(store).__name__} does not "
                    "release in one step, or its fences are no times. Use stores on Redis"
                )
        self.size = len(self._stores)
        self.majority = self.size // 2 + 1
        # The last tokens whose removal was begun here.
        self._over: deque[str] = deque(maxlen=MOST_WAITING)
        self._members = members_of(self._stores)

    def _aliases(self) -> Sequence[str]:
        """The members' aliases. None is a quorum's: to make its store would make this one again."""
        given: Any = self.settings.options.get("STORES")
        size = len(given) if isinstance(given, list | tuple) else 0
        if size < LEAST_MEMBERS or size % 2 == 0 or len({*map(str, given)}) < size:
            raise self.settings.wrong(
                "the option STORES must be a list of aliases of TASKLOCK, an odd number of stores, "
                f"at least {LEAST_MEMBERS}, and none twice: each has one vote"
            )
        for alias in given:
            if alias in stores.settings and stores.settings[alias].backend == self.settings.backend:
                raise self.settings.wrong(f"its member {alias!r} must not be a quorum itself")
        return [*given]

    @property
    def members(self) -> Sequence[Member]:
        """The members, with threads of this process."""
        return self._members.own()

    # Writing.

    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        """Have the members make the changes.

        Where only a minority makes them, its new records are removed again. Others stay: for a
        release and a clear that is right. Of processes that adopt a lease at the same moment, it
        may be that none has a majority; the lease ends by its ttl then.
        """
        changes = self._for_members(changes)
        # Before any member is told: see `_give`.
        removed = [each.expect for each in changes if each.record is None]
        self._over += [expect.token for expect in removed if isinstance(expect, Held)]
        for attempt in range(1, ATTEMPTS + 1):
            vote = self._vote(changes, least_fence)
            if vote.carried:
                entries = vote.entries(self._of_one_fence(vote))
                self._give_again(vote, entries)
                return Done(True, entries)
            self._undo(vote)
            if not vote.decided:
                raise self._unavailable(vote.failed)
            if not vote.split:
                break
            # At random: callers that have split the members are not to meet again.
            time.sleep(chance.uniform(0, PAUSE_SECONDS * attempt))
        return Done(False, vote.entries(vote.refused))

    def _for_members(self, changes: Sequence[Change]) -> Sequence[Change]:
        """The changes as the members are to make them. A new note has a version: one of the same
        text that is there already is another one, and is not removed with it."""
        leases = [each.record for each in changes if not is_note(each.name)]
        tokens = [record["token"] for record in leases if isinstance(record, Mapping)]
        version = tokens[0] if tokens else new_token()
        theirs = []
        for name, expect, record, ttl in changes:
            if is_note(name):
                if expect == FREE and isinstance(record, Mapping):
                    record = {**record, "version": version}
            elif ttl is not None:
                self.check_lasts("ttl", ttl)
            theirs.append(Change(name, expect, record, None if ttl is None else kept_for(ttl)))
        return theirs

    def _vote(self, changes: Sequence[Change], least_fence: int) -> Vote:
        is_new = bool(undoing(changes))

        def vote(member: Member) -> Done:
            done = member.store.put(changes, least_fence)
            # After the grant: a server that was restarted before says so now.
            if is_new and done.made and (seconds := self._waits(member)):
                raise StoreUnavailable(
                    member.alias, f"it was started lately, and counts in {seconds:.0f} s"
                )
            return done

        # A member that is late keeps what it is not told to remove, or to replace, until its end.
        everyone = not is_new and all(each.record != KEEP for each in changes)
        answers = call_all(self.members, vote, self.timeout, self.majority, everyone=everyone)
        return Vote(changes, answers, self.majority)

    def _waits(self, member: Member) -> float:
        """Seconds until all leases are over that a member may have forgotten in a restart."""
        if self.longest_ttl is None:
            return 0.0
        up = member.store.uptime()
        return 0.0 if up is None else max(0.0, kept_for(self.longest_ttl) - up)

    def _of_one_fence(self, vote: Vote) -> Mapping[Member, Done]:
        """The answers of the members that have made the changes, once a majority has the greatest
        fence that a member granted.

        The next majority has a member in common with this one. So each later lease gets a greater
        fence, however much the members' clocks differ.
        """
        written = [each.name for each in vote.changes if isinstance(each.record, Mapping)]
        leases = {name for name in written if not is_note(name)}
        granted = [entry for done in vote.made.values() for entry in done.entries if entry]
        fences = {entry.fence for entry in granted if entry.fence and entry.name in leases}
        if len(fences) < 2:
            return vote.made
        # Conditions were met, and need not be any more: the gate of a permit may be held by now.
        changes = [e._replace(expect=ANY) if e.record == KEEP else e for e in vote.changes]
        again = self._tell([*vote.made], changes, max(fences), self.majority)
        second = Vote(vote.changes, again, self.majority)
        if not second.carried:
            self._undo(vote)
            raise self._unavailable(second.failed)
        return second.made

    def _undo(self, vote: Vote) -> None:
        """Remove what is new, also at members of which it is not known whether they have it."""
        if vote.new:
            self._tell([*vote.made, *vote.failed], vote.new)

    def _give_again(self, vote: Vote, entries: Sequence[Entry | None]) -> None:
        """Give a lease that was extended to the members that have lost it, so that it outlives the
        loss of all, one after the other. A majority has it without these."""
        lost = [member for member, done in vote.refused.items() if not any(done.entries)]
        for change, entry in zip(vote.changes, entries, strict=True):
            if lost and entry is not None and change.record == KEEP and change.ttl:
                again = Change(entry.name, FREE, entry.record, change.ttl)
                call_all(lost, partial(self._give, again, entry), self.timeout, 0)

    def _give(self, again: Change, entry: Entry, member: Member) -> None:
        """Give a lease to a member, unless its release has overtaken the extension. One that comes
        after this look is behind it in the member's queue."""
        if entry.token not in self._over:
            member.store.put([again], entry.fence or 0)

    def _tell(
        self, members: Sequence[Member], changes: Sequence[Change], fence: int = 0, enough: int = 0
    ) -> Answers:
        """Have some members make changes."""
        return call_all(members, lambda each: each.store.put(changes, fence), self.timeout, enough)

    def extend_many(self, batch: Sequence[Extension]) -> Sequence[bool | None]:
        said: builtins.list[bool | None] = []
        for each in batch:
            try:
                said.append(self.extend(*each))
            except StoreUnavailable:
                said.append(None)
        return said

    # Reading.

    def get(self, names: Sequence[str]) -> builtins.list[Entry | None]:
        answers = call_all(
            self.members, lambda member: member.store.get(names), self.timeout, self.majority
        )
        self._assert_answered(answers.failed)
        columns = zip(names, zip(*answers.given.values(), strict=True), strict=True)
        return [self._held(name, column, answers.failed) for name, column in columns]

    def list(self, prefix: str = "") -> Iterator[Entry]:
        # In the caller's thread, one member after the other: no other call has to wait meanwhile.
        found: dict[str, builtins.list[Entry]] = {}
        failed: dict[Member, str] = {}
        for member in self.members:
            try:
                for entry in [*member.store.list(prefix)]:
                    found.setdefault(str(entry.name), []).append(entry)
            except StoreUnavailable as error:
                failed[member] = error.reason
        self._assert_answered(failed)
        held = [self._held(name, column, failed) for name, column in found.items()]
        yield from sorted(filter(None, held), key=left_of)

    def _held(self, name: str, column: Column, failed: Mapping[Member, str]) -> Entry | None:
        """What holds a lock: members that have not answered may have it too."""
        enough = self.majority - len(failed)
        return entry_of(name, column, enough, least=enough)

    def _assert_answered(self, failed: Mapping[Member, str]) -> None:
        if self.size - len(failed) < self.majority:
            raise self._unavailable(failed)

    def check(self) -> Iterator[Finding]:
        failed = {}
        for member in self.members:
            its = f"its member {member.alias!r}"
            try:
                for found in member.store.check():
                    yield found._replace(message=f"{its}: {found.message}")
                if seconds := self._waits(member):
                    text = f"{its} was started lately, and does not count for {seconds:.0f} s more"
                    mend = "Wait: it may have forgotten a lease."
                    yield Finding("member_waits", True, text, mend)
            except StoreUnavailable as error:
                failed[member] = error.reason
                text = f"{its} does not answer: {error.reason}"
                mend = "Look at its server. A majority of the members must answer."
                yield Finding("member_down", True, text, mend)
        if self.longest_ttl is None:
            text = "LONGEST_TTL is None: a restarted member counts at once, but may lack a lease"
            mend = "Set it to the longest ttl of a lease, in seconds."
            yield Finding("restarts", True, text, mend)
        self._assert_answered(failed)

    def close_idle(self) -> None:
        self._members = members_of(self._stores)  # The threads of the old ones end.

    def _unavailable(self, failed: Mapping[Member, str]) -> StoreUnavailable:
        answered = f"{self.size - len(failed)} of its {self.size} members answered"
        reasons = sorted(f"{member.alias}: {reason}" for member, reason in failed.items())
        must = f"{answered}, and {self.majority} must agree"
        return StoreUnavailable(self.alias, "; ".join([must, *reasons]))


def kept_for(ttl: float) -> float:
    """Return for how many seconds a member keeps a lease of this ttl."""
    return ttl + ttl * DRIFT + ROUNDING_SECONDS


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
