"""Asking members without threads: the caller sends to all of them, and then reads the replies."""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from ..._compat.native_threads import are_patched
from ..._values import clock
from ...exceptions import StoreUnavailable
from ..membership import Begun, Unfinished
from .answers import Answers
from .member import Member

__all__ = ["Begin", "Call", "begun_at", "read_at_once"]

T = TypeVar("T")

READING_SECONDS = 0.05
"""for so long the caller reads by itself; members that are slower are read by their threads"""
READING_SHARE = 1 / 10
"""and at most for this share of the time that a member has"""
LOOK_SECONDS = 0.001
"""how often the caller looks meanwhile whether the answers to threads are enough"""
GRACE_SECONDS = 0.005
"""for so long it waits for the last replies when there are enough. Mostly they are there at once,
and a thread that is woken to read one costs more than all the rest of the call"""


class Call(Generic[T]):
    """A call to a member that was begun. Whoever takes it finishes it.

    Args:
        member: that was asked.
        begun: the member's own.
        answer: calls its argument, which makes the rest of the call, and does what a thread of the
            member does with the answer.
        not_read: called when the reply will not be read by anybody.
    """

    __slots__ = ("_begun", "_not_read", "answer", "fileno", "member")

    def __init__(
        self,
        member: Member,
        begun: Begun[T],
        answer: Callable[[Callable[[], T]], T],
        not_read: Callable[[], None],
    ) -> None:
        self.member, self.answer, self._not_read = member, answer, not_read
        self.fileno = begun.fileno()
        self._begun = [begun]

    def is_open(self) -> bool:
        """Whether nobody has taken it."""
        return bool(self._begun)

    def take(self) -> Begun[T] | None:
        """The call, for the one who asks first."""
        try:
            return self._begun.pop()
        except IndexError:
            return None

    def read(self) -> T:
        """The answer, if it can be had without waiting. Raises `Unfinished`: somebody may take the
        call then."""
        begun = self._begun.pop()
        try:
            return self.answer(begun.read)
        except Unfinished:
            self._begun.append(begun)
            raise

    def give_up(self) -> bool:
        """Do not finish it. Returns False if somebody has taken it."""
        begun = self.take()
        if begun is None:
            return False
        begun.drop()
        self._not_read()
        return True


Begin = Callable[[Member], Call[T] | None]
"""begins the call to a member; None: it must be made in a thread"""


class _Question(Protocol[T]):
    """What is needed of a poll."""

    seconds: float

    def read(self, call: Call[T]) -> None: ...
    def look(self) -> Answers[T] | None: ...
    def hand_over(self, call: Call[T]) -> None: ...


def begun_at(members: Sequence[Member], begin: Begin[T], calls: list[Call[T]]) -> list[Member]:
    """Begin the calls to members whose threads have no trouble with them.

    None under gevent and eventlet: all greenlets would wait with the one that reads.

    Args:
        members: whom to ask.
        begin: begins a call.
        calls: gets those that were begun.

    Returns:
        The members that are to be asked in threads.
    """
    if are_patched() or not hasattr(select, "poll"):
        return list(members)
    others = []
    for member in members:
        call = None
        if not member.callers.doubtful():
            try:
                call = begin(member)
            except StoreUnavailable:
                pass  # The thread will say so.
        if call is None:
            others.append(member)
        else:
            calls.append(call)
    return others


def read_at_once(
    question: _Question[T], calls: Sequence[Call[T]], *, alone: bool
) -> Answers[T] | None:
    """Read the replies to calls that were begun, as they come.

    Args:
        question: of which they are. What it may still wait becomes less by what was waited here.
        calls: that were begun. Those that are not finished in time are handed over to threads.
        alone: whether no other members were asked.

    Returns:
        The answers when there are enough of them; None if there are not, until now.
    """
    poll = select.poll()
    waiting: dict[int, Call[T]] = {}
    for call in calls:
        waiting[call.fileno] = call
        poll.register(call.fileno, select.POLLIN)
    answers: Answers[T] | None = None
    began = now = clock.now()
    until = began + min(READING_SECONDS, question.seconds * READING_SHARE)
    while waiting:
        left = max(0.0, until - now)
        for descriptor, _ in poll.poll(1000 * (left if alone else min(left, LOOK_SECONDS))):
            poll.unregister(descriptor)
            question.read(waiting.pop(descriptor))
        now = clock.now()
        if answers is None:
            answers = question.look()
            if answers is not None:
                late = all(call.member.lateness.lasts(now) for call in waiting.values())
                until = now if late else min(until, now + GRACE_SECONDS)
        if left <= 0.0:
            break
    for call in waiting.values():
        call.member.lateness.begin(now)
        question.hand_over(call)
    if answers is None:
        # At most what was allowed: if the process was stopped meanwhile, no member was silent.
        question.seconds -= min(now, until) - began
    return answers
