"""Leases that a majority of several stores has granted (Redlock)."""

from __future__ import annotations

import builtins
import os
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import inf
from typing import Any, ClassVar

from ..._values.tokens import chance, new_token
from ...conf import StoreSettings
from ...exceptions import StoreUnavailable
from .. import stores
from ..base import BaseStore, Extension, Finding
from ..records import FREE, KEEP, Change, Done, Entry, Held, is_note, left_of, undoing
from .members import MOST_WAITING, Answers, Member, ask

LEAST_MEMBERS = 3
DEFAULT_LONGEST_TTL_SECONDS, DEFAULT_TIMEOUT_SECONDS = 300.0, 1.0
# A holder counts its ttl from before the call, by its own clock. A member counts from when it is
# asked, by its own, which may be faster by this share. So it keeps a lease for so much longer, and
# for the rounding of a server that counts in milliseconds.
DRIFT, ROUNDING_SECONDS = 0.01, 0.002
# How often a caller asks when callers of the same moment have split the members among them; and the
# longest pause before it asks again, which grows each time.
ATTEMPTS, PAUSE_SECONDS = 12, 0.01


class QuorumStore(BaseStore):
    """A lock is held if a majority of the members, which are stores of other aliases, holds it.

    All members are asked at the same time. Of five, any two may be dead, cut off or silent; if a
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
            longest = settings.seconds("LONGEST_TTL", DEFAULT_LONGEST_TTL_SECONDS)
            if settings.ttl > longest:
                raise settings.wrong(
                    f"its TTL must be at most {longest:g} s (LONGEST_TTL), not {settings.ttl:g} s"
                )
            self.longest_ttl = longest
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
        # By process: a forked child has none of its parent's threads.
        self._members: dict[int, tuple[Member, ...]] = {}

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
    def members(self) -> tuple[Member, ...]:
        """The members, with threads of this process."""
        process, made = os.getpid(), self._members
        return made.get(process) or made.setdefault(process, tuple(map(Member, self._stores)))

    # Writing.

    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        """Have the members make the changes.

        Where only a minority makes them, its new records are removed again. Others stay: for a
        release and a clear that is right. Of processes that adopt a lease at the same moment, it
        may be that none has a majority; the lease ends by its ttl then.
        """
        records = (each.record for each in changes if not is_note(each.name))
        tokens = [record["token"] for record in records if isinstance(record, Mapping)]
        mark = (tokens or [new_token()])[0]
        changes = [self._as_member(change, mark) for change in changes]
        # Before any member is told: see `_give`.
        removed = (each.expect for each in changes if each.record is None)
        self._over += [expect.token for expect in removed if isinstance(expect, Held)]
        undo = undoing(changes)
        removes = all(each.record is None for each in changes)
        for attempt in range(1, ATTEMPTS + 1):
            given, failed = self._vote(changes, least_fence, is_new=bool(undo))
            made, refused = _said(given, True), _said(given, False)
            answered = len(given) >= self.majority
            # What a majority of the answers has removed, if it was there, no majority has now.
            maybe = len(made) + len(failed) if removes and answered and made else len(made)
            if maybe >= self.majority:
                entries = self._agreed(changes, undo, made)
                self._give_again(changes, entries, refused)
                return Done(True, entries)
            if undo:
                self._tell([member for member in self.members if member not in refused], undo)
            # That a lease is lost must not depend on the members that have not answered. But a lock
            # is not granted if some of those that have answered hold it.
            lost = len(refused) > self.size - self.majority
            if not (lost or (answered and refused and (undo or removes))):
                raise self._unavailable(failed)
            columns = zip(*(done.entries for done in refused.values()), strict=True)
            if not undo or max(len(_leading(each)) for each in columns) >= self.majority:
                break
            time.sleep(chance.uniform(0, PAUSE_SECONDS * attempt))
        return Done(False, self._entries(changes, refused))

    def _as_member(self, change: Change, mark: str) -> Change:
        """The change as the members are to make it. A new note has a version, ``mark``: one of the
        same text that is there already is another one, and is not removed with it."""
        if change.expect == FREE and isinstance(change.record, Mapping) and is_note(change.name):
            change = change._replace(record={**change.record, "version": mark})
        name, ttl, longest = change.name, change.ttl, self.longest_ttl
        if ttl is not None and longest is not None and ttl > longest and not is_note(name):
            raise ValueError(
                f"ttl must be at most {longest:g} s (LONGEST_TTL of the lock store "
                f"{self.alias!r}), not {ttl:g} s"
            )
        return change if ttl is None else change._replace(ttl=_lasting(ttl))

    def _vote(self, changes: Sequence[Change], least_fence: int, *, is_new: bool) -> Answers:
        def vote(member: Member) -> Done:
            done: Done = member.store.put(changes, least_fence)
            # After the grant: a server that was restarted before says so now.
            if is_new and done.made and (seconds := self._waits(member)):
                raise StoreUnavailable(
                    member.alias, f"it was started lately, and counts in {seconds:.0f} s"
                )
            return done

        # A member that is late keeps what it is not told to remove, or to replace, until its end.
        everyone = not is_new and all(each.record != KEEP for each in changes)
        return ask(self.members, vote, self.timeout, self.majority, everyone=everyone)

    def _waits(self, member: Member) -> float:
        """Seconds until all leases are over that a member may have forgotten in a restart."""
        up = None if self.longest_ttl is None else member.store.uptime()
        if up is None or self.longest_ttl is None:
            return 0.0
        return max(0.0, _lasting(self.longest_ttl) - up)

    def _agreed(
        self, changes: Sequence[Change], undo: Sequence[Change], made: dict[Member, Done]
    ) -> builtins.list[Entry | None]:
        """What is under the names, once a majority has the greatest fence that a member granted.

        The next majority has a member in common with this one. So each later lease gets a greater
        fence, however much the members' clocks differ.
        """
        leases = {each.name for each in changes if isinstance(each.record, Mapping)}
        entries = chain(*(done.entries for done in made.values()))
        fences = {each.fence for each in entries if each and each.fence and each.name in leases}
        if len(fences) > 1:
            again = self._tell([*made], changes, max(fences), self.majority)
            made = _said(again.given, True)
            if len(made) < self.majority:
                if undo:
                    self._tell(self.members, undo)
                raise self._unavailable(again.failed)
        return self._entries(changes, made)

    def _give_again(
        self,
        changes: Sequence[Change],
        entries: Sequence[Entry | None],
        refused: Mapping[Member, Done],
    ) -> None:
        """Give a lease that was extended to the members that have lost it, so that it outlives the
        loss of all, one after the other. A majority has it without these."""
        without = [member for member, done in refused.items() if not any(done.entries)]
        for change, entry in zip(changes, entries, strict=True):
            if without and entry is not None and change.record == KEEP and change.ttl:
                again = Change(entry.name, FREE, entry.record, change.ttl)
                ask(without, partial(self._give, again, entry), self.timeout, 0)

    def _give(self, again: Change, entry: Entry, member: Member) -> None:
        """Give a lease to a member, unless its release has overtaken the extension. One that comes
        after this look is behind it in the member's queue."""
        if entry.token not in self._over:
            member.store.put([again], entry.fence or 0)

    def _entries(
        self, changes: Sequence[Change], answers: Mapping[Member, Done]
    ) -> builtins.list[Entry | None]:
        """What most of some members say is there."""
        columns = zip(*(done.entries for done in answers.values()), strict=True)
        unknown = self.size - len(answers)
        pairs = zip(changes, columns, strict=True)
        return [self._entry(column, change.name, unknown) for change, column in pairs]

    def _entry(
        self, column: Iterable[Entry | None], name: str, unknown: int, least: int = 1
    ) -> Entry | None:
        """What most members say is under a name, if it is so many; ``unknown`` have not answered.

        It ends when fewer than a majority have it: those that have not answered may have it for
        longer than all others. Its fence is one that a majority has.
        """
        same = _leading(column)
        if len(same) < least:
            return None
        at = min(max(1, self.majority - unknown), len(same)) - 1
        left = sorted(map(left_of, same), reverse=True)[at]
        fence = sorted((each.fence or 0 for each in same), reverse=True)[at]
        records = [each.record for each in same if each.record is not None]
        if records:  # What is left for its holder.
            left = max(0.0, (left - ROUNDING_SECONDS) / (1 + DRIFT))
        # Some may have missed that the lease was detached, or adopted.
        versions = Counter(record.get("version") for record in records)
        record = max(
            records,
            key=lambda record: (versions[record.get("version")], record.get("at", 0)),
            default=None,
        )
        began = min((each.began for each in same if each.began is not None), default=None)
        ends = None if left == inf else left
        return Entry(name, record, ends, fence or None, same[0].digest, began)

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
        given, failed = ask(
            self.members, lambda member: member.store.get(names), self.timeout, self.majority
        )
        self._assert_answered(failed)
        columns = zip(names, zip(*given.values(), strict=True), strict=True)
        return [self._held(column, name, len(failed)) for name, column in columns]

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
        held = [self._held(column, name, len(failed)) for name, column in found.items()]
        yield from sorted((entry for entry in held if entry is not None), key=left_of)

    def _held(self, column: Iterable[Entry | None], name: str, unknown: int) -> Entry | None:
        """What holds a lock: members that have not answered may have it too."""
        return self._entry(column, name, unknown, max(1, self.majority - unknown))

    def _assert_answered(self, failed: Mapping[Member, str]) -> None:
        if self.size - len(failed) < self.majority:
            raise self._unavailable(failed)

    def check(self) -> Iterator[Finding]:
        failed = {}
        for member in self.members:
            its = f"its member {member.alias!r}"
            try:
                for found in member.store.check():
                    yield replace(found, message=f"{its}: {found.message}")
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
        for member in self._members.pop(os.getpid(), ()):
            member.end()

    # Asking.

    def _tell(
        self, members: Sequence[Member], changes: Sequence[Change], fence: int = 0, enough: int = 0
    ) -> Answers:
        """Have some members make changes."""
        return ask(members, lambda member: member.store.put(changes, fence), self.timeout, enough)

    def _unavailable(self, failed: Mapping[Member, str]) -> StoreUnavailable:
        reasons = [f"{member.alias}: {reason}" for member, reason in failed.items()]
        return StoreUnavailable(
            self.alias,
            f"{self.size - len(failed)} of its {self.size} members answered, and {self.majority} "
            f"must agree; {'; '.join(sorted(reasons))}",
        )


def _lasting(ttl: float) -> float:
    return ttl + ttl * DRIFT + ROUNDING_SECONDS


def _said(answers: Mapping[Member, Done], made: bool) -> dict[Member, Done]:
    return {member: done for member, done in answers.items() if done.made is made}


def _leading(entries: Iterable[Entry | None]) -> Sequence[Entry]:
    """Return the entries of the holder that most members have, a lease or other code's value; of
    several, the same one for everybody who asks. Empty if no member has any."""
    found: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if entry is not None:
            token = "" if entry.record is None else entry.record["token"]
            found.setdefault((token, entry.digest or ""), []).append(entry)
    return max(found.items(), key=lambda each: (len(each[1]), each[0]), default=("", ()))[1]
