"""The members of a quorum: each is called in a thread of its own, and all are asked at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from ..._compat.native_threads import are_patched, new_lock, this_thread
from ..._values import clock
from ...exceptions import StoreUnavailable
from ..base import BaseStore

# So many questions wait for a member that does not answer.
MOST_WAITING = 1000


class Member:
    """A store of another alias, which one thread calls, in the order of the questions.

    So what undoes a question comes after it, also at a member that nobody waits for. A caller only
    puts its question into a queue, which is one step: an exception that a signal handler raises
    leaves no lock behind, as it may in a ``ThreadPoolExecutor``. And no thread is waited for when
    the process ends.
    """

    def __init__(self, store: BaseStore) -> None:
        self.store, self.alias = store, store.alias
        self._questions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # Held by the thread for as long as it lives.
        self._running = new_lock()
        # Whether its last answer came too late, or has not come yet.
        self.is_slow = False

    def ask(self, question: Callable[[], None]) -> None:
        """Have ``question``, which raises nothing, called in its turn.

        Raises `StoreUnavailable` if too many wait already, or the system starts no thread.
        """
        if self._questions.qsize() >= MOST_WAITING:
            raise StoreUnavailable(self.alias, "it has not answered for some time")
        self._questions.put(question)
        if not self._running.locked():
            try:
                threading.Thread(target=self._work, daemon=True, name="tasklock-quorum").start()
            except RuntimeError as error:
                raise StoreUnavailable(self.alias, str(error)) from error

    @property
    def is_late(self) -> bool:
        """Whether it is slow, and others wait for it already."""
        return self.is_slow and not self._questions.empty()

    def end(self) -> None:
        """End the thread when it has nothing to do. Nothing is asked after that."""
        self._questions.put(None)

    def _work(self) -> None:
        if not self._running.acquire(False):
            return  # Two were started at the same time.
        while (question := self._questions.get()) is not None:
            question()


class Answers(NamedTuple):
    """What members have answered to one question, and why others have not."""

    given: dict[Member, Any]
    failed: dict[Member, str]


def ask(
    members: Sequence[Member],
    call: Callable[[Member], Any],
    seconds: float,
    enough: int,
    *,
    everyone: bool = False,
) -> Answers:
    """Ask members at the same time, and wait for all of them.

    Args:
        members: whom to ask.
        call: makes the call, in the member's thread, perhaps after this function has returned.
        seconds: how long to wait.
        enough: with so many answers, a member that was slow before is not waited for, and not
            asked either while others wait for it.
        everyone: ask it all the same.

    Raises whatever a call has raised that is no `StoreUnavailable`.
    """
    given: dict[Member, Any] = {}
    failed: dict[Member, str] = {}
    replies: SimpleQueue[tuple[Member, Any]] = SimpleQueue()
    slow = {member for member in members if member.is_slow}
    # Under gevent and eventlet the threads are greenlets, and belong to one thread of the system.
    # The renewal thread is another one: it asks by itself, and the slow ones last.
    asks_itself = this_thread.renews and are_patched()
    for member in sorted(members, key=slow.__contains__):
        question = partial(_reply, member, call, replies, clock.now() + seconds)
        try:
            if asks_itself:
                if member not in slow or replies.qsize() < enough:
                    question()
            elif everyone or not (member.is_late and 0 < enough <= len(members) - len(slow)):
                member.ask(question)
            else:
                failed[member] = "it was late before"
        except StoreUnavailable as error:
            failed[member] = error.reason
    # While the whole process stands still, the members' threads stand too, which is no silence of
    # the members: it costs one of two halves.
    for _ in range(2):
        until = clock.now() + seconds / 2
        with suppress(Empty):
            while unanswered := {*members} - {*given, *failed}:
                if len(given) >= enough and unanswered <= slow:
                    break
                member, answer = replies.get(timeout=max(0.0, until - clock.now()))
                if isinstance(answer, StoreUnavailable):
                    failed[member] = answer.reason
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    given[member] = answer
    for member in {*members} - {*given, *failed}:
        failed[member] = "it was late before" if member in slow else f"no answer in {seconds:g} s"
        member.is_slow |= member not in slow
    return Answers(given, failed)


def _reply(
    member: Member, call: Callable[[Member], Any], replies: SimpleQueue[Any], due: float
) -> None:
    try:
        answer = call(member)
    except BaseException as error:
        answer = error
    member.is_slow = clock.now() > due
    replies.put((member, answer))
