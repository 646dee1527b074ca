"""Asking all members at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from ..._compat.native_threads import new_lock
from ..._values import clock
from ...exceptions import StoreUnavailable
from .answers import Answers, Enough
from .member import Member

__all__ = ["poll"]

T = TypeVar("T")

LOOK_SECONDS = 0.05
"""how often a caller counts the answers to a question that takes long"""
PARTS = 10
"""the time is counted in so many parts; a member that has not answered another call for too long is
waited for one of them"""


class _Poll(Generic[T]):
    """One question to some members. Threads of the members use `run`, the caller the rest."""

    def __init__(
        self,
        ask: Callable[[Member], T],
        enough: Enough[T],
        numbers: frozenset[int],
        seconds: float,
        not_asked: Callable[[Member], None] | None,
        native: bool,
    ) -> None:
        self._ask, self._enough, self._seconds = ask, enough, seconds
        self._deadline = clock.now() + seconds
        self._left = False
        self._not_asked = not_asked
        self._guard = new_lock()
        """held for a few instructions, and never by the caller, which a signal may interrupt"""
        self._done: Any = new_lock() if native else threading.Lock()
        self._done.acquire()
        self._given: dict[int, T] = {}
        self._failed: dict[int, str] = {}
        self._numbers = numbers
        self._size = len(numbers)
        self._closed: Answers[T] | None = None
        self.doubted: set[int] = set()
        """members that have not answered another call for too long"""
        self.mistake: BaseException | None = None
        """what a member raised that is no `StoreUnavailable`"""

    def run(self, member: Member) -> None:
        if self._left and clock.now() >= self._deadline:
            self.skip(member)
            return
        try:
            self._note(self._given, member.number, self._ask(member))
        except StoreUnavailable as error:
            self._note(self._failed, member.number, error.reason)
        except BaseException as error:
            self.mistake = error
            self._note(self._failed, member.number, f"{type(error).__name__}: {error}")

    def skip(self, member: Member) -> None:
        """Note that a member is not asked: too many of its calls have had no answer."""
        if self._not_asked is not None:
            self._not_asked(member)
        self._note(self._failed, member.number, "it does not answer")

    def _note(self, answers: dict[int, Any], number: int, answer: Any) -> None:
        with self._guard:
            answers[number] = answer
            if self._closed is None:
                now = self.answers()
                if now.pending == 0 or self._enough(now):
                    self._closed = now
                    self._done.release()

    def answers(self) -> Answers[T]:
        return Answers(dict(self._given), dict(self._failed), self._size)

    def leave(self) -> None:
        """The caller is gone: members whose turn comes after the deadline are not asked."""
        self._left = True

    def result(self, longest: float, at_least: int) -> Answers[T]:
        """The answers as soon as there are enough, at the deadline at the latest.

        If there are fewer than ``at_least``, it waits for so many, ``longest`` seconds at most.
        """
        for answers in self._waiting(longest):
            if self._closed is not None:
                return self._closed
            over = len(answers.given) + answers.pending < at_least or self._enough(answers)
            if over or 0 < at_least <= len(answers.given):
                break
        return self._closed or self.answers()

    def _waiting(self, longest: float) -> Iterator[Answers[T]]:
        """Wait, and yield the answers at the deadline, and then now and then.

        The time is counted in parts. While the whole process stands, or a greenlet computes, the
        members' threads stand too, and that is no silence of the members: it costs one part.
        """
        for part in range(PARTS):
            if self._done.acquire(timeout=self._seconds / PARTS):
                break
            now = self.answers()
            if part == 0 and self.doubted.union(now.given, now.failed) >= self._numbers:
                break
        yield self.answers()
        until = clock.now() + longest
        while self._closed is None and clock.now() < until:
            self._done.acquire(timeout=LOOK_SECONDS)
            yield self.answers()


def poll(
    members: Sequence[Member],
    ask: Callable[[Member], T],
    enough: Enough[T],
    seconds: float,
    *,
    not_asked: Callable[[Member], None] | None = None,
    native: bool = False,
    wait: bool = True,
    longest: float | None = None,
    at_least: int = 0,
) -> Answers[T]:
    """Ask members at the same time.

    Args:
        members: whom to ask.
        ask: the call. It is made in a thread of the member, perhaps after this function has
            returned.
        enough: whether the answers that are there are enough. It must be quick, and raise nothing.
        seconds: how long to wait, at most.
        not_asked: called for a member that is not asked, because its threads are stuck, or because
            its turn came too late.
        native: for the renewal thread: see `Crew`.
        wait: False: only see to it that they are asked.
        longest: after ``seconds``, wait for ``at_least`` answers for so many more; for questions
            whose answers may be long.

    Returns:
        The answers when there were enough of them.

    Raises what a member raised that is no `StoreUnavailable`.
    """
    numbers = frozenset(member.number for member in members)
    question = _Poll(ask, enough, numbers, seconds, not_asked, native)
    try:
        for member in members:
            crew = member.renewers if native else member.callers
            if crew.doubtful():
                question.doubted.add(member.number)
            if not crew.submit(partial(question.run, member)):
                question.skip(member)
        answers = question.result(longest or 0.0, at_least) if wait else question.answers()
    finally:
        question.leave()
    if question.mistake is not None and isinstance(question.mistake, Exception):
        raise question.mistake
    return answers
