"""A thread for each member of a quorum, and how all members are called at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from ..._compat.native_threads import are_patched, new_lock, this_thread
from ..._values import clock
from ..._values.processes import OfProcess
from ...exceptions import StoreUnavailable
from ..base import BaseStore

# So many calls wait for a member that does not answer.
MOST_WAITING = 1000
LATE = "it was late before"


class Member:
    """A store of another alias. One thread makes its calls, in their order.

    So what undoes a call comes after it, also at a member that nobody waits for. A caller only puts
    its call into a queue, which is one step: an exception that a signal handler raises leaves no
    lock behind, as it may in a ``ThreadPoolExecutor``. And no thread is waited for when the process
    ends.
    """

    def __init__(self, store: BaseStore) -> None:
        self.store, self.alias = store, store.alias
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # Held by the thread for as long as it lives.
        self._running = new_lock()
        # Whether its last answer came too late, or has not come yet.
        self.is_slow = False

    def call(self, call: Callable[[], None], *, even_late: bool) -> None:
        """Have ``call``, which raises nothing, made by the thread in its turn.

        Args:
            even_late: also if the member is slow, and calls wait for it already.

        Raises `StoreUnavailable` if it is not made: also if too many wait, or the system starts no
        thread.
        """
        if self.is_slow and not (even_late or self._calls.empty()):
            raise StoreUnavailable(self.alias, LATE)
        if self._calls.qsize() >= MOST_WAITING:
            raise StoreUnavailable(self.alias, "it has not answered for some time")
        if not self._running.locked():
            try:
                threading.Thread(target=self._work, daemon=True, name="tasklock-quorum").start()
            except RuntimeError as error:
                raise StoreUnavailable(self.alias, str(error)) from error
        self._calls.put(call)

    def stop(self) -> None:
        """Stop the thread when it has nothing to do. It makes no call after that."""
        self._calls.put(None)

    def _work(self) -> None:
        if not self._running.acquire(False):
            return  # Two were started at the same time.
        while (call := self._calls.get()) is not None:
            call()
            del call  # It refers to the quorum, which would not be collected while nobody calls.


class Members(list[Member]):
    """Those of one process. Their threads end when nobody refers to it any more, nor calls them."""

    def __del__(self) -> None:
        for member in self:
            member.stop()


def members_of(stores: Sequence[BaseStore]) -> OfProcess[Members]:
    """Return the members: a forked child has none of its parent's threads."""
    return OfProcess(lambda: Members(map(Member, stores)))


class Answers(NamedTuple):
    """What members have answered to one call, and why the others have not."""

    given: dict[Member, Any]
    failed: dict[Member, str]


def call_all(
    members: Sequence[Member],
    call: Callable[[Member], Any],
    seconds: float,
    enough: int,
    *,
    everyone: bool = False,
) -> Answers:
    """Call members at the same time, and wait for all of them.

    Args:
        members: whom to call.
        call: makes the call, in the member's thread, perhaps after this function has returned.
        seconds: how long to wait.
        enough: with so many answers, a member that was slow before is not waited for, and not
            called either while other calls wait for it.
        everyone: call it all the same.

    Raises whatever a call has raised that is no `StoreUnavailable`.
    """
    given: dict[Member, Any] = {}
    failed: dict[Member, str] = {}
    replies: SimpleQueue[tuple[Member, Any]] = SimpleQueue()
    slow = {member for member in members if member.is_slow}
    even_late = everyone or not 0 < enough <= len(members) - len(slow)
    # Under gevent and eventlet the threads are greenlets, and belong to one thread of the system.
    # The renewal thread is another one: it makes the calls itself, and those to slow members last.
    calls_itself = this_thread.renews and are_patched()
    for number, member in enumerate(sorted(members, key=slow.__contains__)):
        reply = partial(_reply, member, call, replies, clock.now() + seconds)
        if not calls_itself:
            try:
                member.call(reply, even_late=even_late)
            except StoreUnavailable as error:
                failed[member] = error.reason
        elif member not in slow or number < enough:
            reply()
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
        failed[member] = LATE if member in slow else f"no answer in {seconds:g} s"
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
