"""Leases that a majority of several stores has granted (Redlock)."""

from __future__ import annotations

import builtins
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import ClassVar
from weakref import finalize

from ..._values.arguments import checked_ttl
from ..._values.tokens import chance
from ...conf import StoreSettings
from ...exceptions import InvalidLockConfig, StoreUnavailable
from .. import stores
from ..base import BaseStore, Extension, Finding
from ..records import FREE, KEEP, Change, Done, Entry, Held, is_note, left_of
from .members import Answers, Member, ask
from .votes import leading, majority_of, merged

__all__ = ["QuorumStore"]

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
        self.timeout = self._seconds("TIMEOUT", DEFAULT_TIMEOUT_SECONDS)
        if settings.options.get("LONGEST_TTL", 0) is not None:
            longest = self.longest_ttl = self._seconds("LONGEST_TTL", DEFAULT_LONGEST_TTL_SECONDS)
            if settings.ttl > longest:
                raise self._wrong(f"its TTL is {settings.ttl:g} s, and LONGEST_TTL {longest:g} s")
        made = [stores[alias] for alias in self._aliases()]
        for store in made:
            if not (store.atomic_release and store.fences_are_times):
                raise self._wrong(
                    f"it cannot have the member {store.alias!r}: a {type(store).__name__} does not "
                    "release in one step, or its fences are no times"
                )
        self.size, self.majority = len(made), majority_of(len(made))
        self.members = tuple(Member(*each) for each in enumerate(made))
        finalize(self, _end, self.members).atexit = False

    def _seconds(self, option: str, default: float) -> float:
        given = self.settings.options.get(option, default)
        try:
            return checked_ttl(given)
        except (TypeError, ValueError) as error:
            raise self._wrong(
                f"the option {option} is a number of seconds, not {given!r}"
            ) from error

    def _aliases(self) -> Sequence[str]:
        """The members' aliases. None is a quorum's: to make its store would make this one again."""
        given = self.settings.options.get("STORES")
        if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
            raise self._wrong("the option STORES is a list of aliases of TASKLOCK")
        if len(given) < LEAST_MEMBERS or len(given) % 2 == 0 or len({*given}) < len(given):
            raise self._wrong(
                f"STORES names an odd number of stores, at least {LEAST_MEMBERS}, and none twice: "
                "each has one vote"
            )
        for alias in given:
            if alias in stores.settings and stores.settings[alias].backend == self.settings.backend:
                raise self._wrong(f"its member {alias!r} is a quorum")
        return given

    def _wrong(self, text: str) -> InvalidLockConfig:
        return InvalidLockConfig(f"the lock store {self.alias!r}: {text}")

    # Writing.

    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        return self._put(changes, least_fence)[0]

    def _put(
        self, changes: Sequence[Change], least_fence: int = 0
    ) -> tuple[Done, dict[Member, Done]]:
        """`put`, and the answers of the members.

        Where only a minority makes changes, its new records are removed again. Others stay: for a
        release and a clear that is right. Of processes that adopt a lease at the same moment, it
        may be that none has a majority; the lease ends by its ttl then.
        """
        changes = [self._longer(change) for change in changes]
        undo = [
            Change(each.name, Held(each.record["token"], each.record.get("version")), None)
            for each in changes
            if each.expect == FREE and isinstance(each.record, Mapping)
        ]
        removes = all(each.record is None for each in changes)
        # A member that is late keeps what it is not told to remove, or to replace, until its end.
        everyone = not undo and all(each.record != KEEP for each in changes)
        for attempt in range(1, ATTEMPTS + 1):
            given, failed = self._vote(changes, least_fence, bool(undo), everyone)
            made, refused = _said(given, True), _said(given, False)
            answered = len(given) >= self.majority
            # What a majority of the answers has removed, if it was there, no majority has now.
            maybe = len(made) + len(failed) if removes and answered and made else len(made)
            if maybe >= self.majority:
                return Done(True, self._agreed(changes, undo, made)), given
            if undo:
                self._tell([member for member in self.members if member not in refused], undo)
            # That a lease is lost must not depend on the members that have not answered. But a lock
            # is not granted if some of those that have answered hold it.
            lost = len(refused) > self.size - self.majority
            if not (lost or (answered and refused and (undo or removes))):
                raise self._unavailable(len(given), failed)
            columns = _columns(refused)
            if not undo or max(len(leading(each)) for each in columns) >= self.majority:
                break
            if attempt < ATTEMPTS:
                time.sleep(chance.uniform(0, PAUSE_SECONDS * attempt))
        return Done(False, self._entries(changes, refused)), given

    def _longer(self, change: Change) -> Change:
        """The change as the members are to make it."""
        name, ttl, longest = change.name, change.ttl, self.longest_ttl
        if ttl is not None and longest is not None and ttl > longest and not is_note(name):
            raise ValueError(
                f"the lock store {self.alias!r} grants leases of {longest:g} s at most "
                f"(LONGEST_TTL), not of {ttl:g} s"
            )
        return change if ttl is None else change._replace(ttl=_lasting(ttl))

    def _vote(
        self, changes: Sequence[Change], least_fence: int, is_new: bool, everyone: bool
    ) -> Answers:
        def vote(member: Member) -> Done:
            done: Done = member.store.put(changes, least_fence)
            # After the grant: a server that was restarted before says so now.
            if is_new and done.made and (seconds := self._waits(member)):
                raise StoreUnavailable(
                    member.alias, f"it was started lately, and counts in {seconds:.0f} s"
                )
            return done

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
        fences = {
            entry.fence or 0
            for done in made.values()
            for entry in done.entries
            if entry is not None and entry.name in leases and not is_note(entry.name)
        }
        if len(fences) > 1:
            again = self._tell([*made], changes, max(fences), self.majority)
            made = _said(again.given, True)
            if len(made) < self.majority:
                if undo:
                    self._tell(self.members, undo)
                raise self._unavailable(len(made), again.failed)
        return self._entries(changes, made)

    def _entries(
        self, changes: Sequence[Change], answers: dict[Member, Done]
    ) -> builtins.list[Entry | None]:
        """What most of some members say is there."""
        columns, unknown = _columns(answers), self.size - len(answers)
        pairs = zip(changes, columns, strict=True)
        return [self._entry(column, change.name, unknown) for change, column in pairs]

    def _entry(
        self, column: Iterable[Entry | None], name: str, unknown: int, least: int = 1
    ) -> Entry | None:
        """What most members say is under a name, if it is so many; of a lease, with what is left of
        it for its holder. ``unknown`` members have not answered."""
        same = leading(column)
        if len(same) < least:
            return None
        entry = merged(same, name, unknown, self.size)
        if entry.left is None or entry.record is None:
            return entry
        return entry._replace(left=max(0.0, (entry.left - ROUNDING_SECONDS) / (1 + DRIFT)))

    def extend(self, name: str, token: str, ttl: float) -> bool:
        done, given = self._put([Change(name, Held(token), KEEP, ttl)])
        entry = done.entries[0]
        without = [member for member, said in given.items() if not (said.made or said.entries[0])]
        if done.made and without and entry is not None:
            # So it outlives the loss of all members, one after the other. A majority has it without
            # these: they may as well vote for it.
            again = self._longer(Change(name, FREE, entry.record, ttl))
            self._tell(without, [again], entry.fence or 0)
        return done.made

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
        self._assert_answered(given, failed)
        columns = zip(names, zip(*given.values(), strict=True), strict=True)
        return [self._held(column, name, len(failed)) for name, column in columns]

    def list(self, prefix: str = "") -> Iterator[Entry]:
        # In the caller's thread, one member after the other: no other call has to wait meanwhile.
        given: dict[Member, builtins.list[Entry]] = {}
        failed: dict[Member, str] = {}
        for member in self.members:
            try:
                given[member] = [*member.store.list(prefix)]
            except StoreUnavailable as error:
                failed[member] = error.reason
        self._assert_answered(given, failed)
        found: dict[tuple[str, str | None], builtins.list[Entry]] = {}
        for entry in chain(*given.values()):
            holder = entry.digest if entry.record is None else entry.record["token"]
            found.setdefault((str(entry.name), holder), []).append(entry)
        held = [self._held(column, name, len(failed)) for (name, _), column in found.items()]
        yield from sorted((entry for entry in held if entry is not None), key=left_of)

    def _held(self, column: Iterable[Entry | None], name: str, unknown: int) -> Entry | None:
        """What holds a lock: members that have not answered may have it too."""
        return self._entry(column, name, unknown, max(1, self.majority - unknown))

    def _assert_answered(self, given: Collection[Member], failed: Mapping[Member, str]) -> None:
        if len(given) < self.majority:
            raise self._unavailable(len(given), failed)

    def check(self) -> Iterator[Finding]:
        failed = {}
        for member in self.members:
            its = f"its member {member.alias!r}"
            try:
                for found in member.store.check():
                    yield replace(found, message=f"{its}: {found.message}")
                if seconds := self._waits(member):
                    text = f"{its} was started lately, and does not count for {seconds:.0f} s more"
                    yield Finding(
                        "member_waits", True, text, "Wait: it may have forgotten a lease."
                    )
            except StoreUnavailable as error:
                failed[member] = error.reason
                text = f"{its} does not answer: {error.reason}"
                yield Finding("member_down", True, text, "A majority of the members must answer.")
        if self.longest_ttl is None:
            text = "LONGEST_TTL is None: a member that has forgotten a lease in a restart counts"
            yield Finding(
                "restarts", True, text, "Set it to the longest ttl of a lease, in seconds."
            )
        self._assert_answered({*self.members} - {*failed}, failed)

    # Asking.

    def _tell(
        self, members: Sequence[Member], changes: Sequence[Change], fence: int = 0, enough: int = 0
    ) -> Answers:
        """Have some members make changes."""
        return ask(members, lambda member: member.store.put(changes, fence), self.timeout, enough)

    def _unavailable(self, answered: int, failed: Mapping[Member, str]) -> StoreUnavailable:
        reasons = [f"{member.alias}: {reason}" for member, reason in failed.items()]
        return StoreUnavailable(
            self.alias,
            f"{answered} of its {self.size} members answered, and {self.majority} must agree; "
            + "; ".join(sorted(reasons)),
        )


def _lasting(ttl: float) -> float:
    return ttl + ttl * DRIFT + ROUNDING_SECONDS


def _said(answers: dict[Member, Done], made: bool) -> dict[Member, Done]:
    return {member: done for member, done in answers.items() if done.made is made}


def _columns(answers: dict[Member, Done]) -> builtins.list[tuple[Entry | None, ...]]:
    """What each member says is under one name, for each name."""
    return [*zip(*(done.entries for done in answers.values()), strict=True)]


def _end(members: Sequence[Member]) -> None:
    for member in members:
        member.end()
