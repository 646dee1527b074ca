"""A caller that waits in a lock's wait queue, without polling.

hand_over.lua says what the messages are. Anybody may publish on a channel, so one that is not
exactly so is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

from ..._values import clock
from ..._values.arguments import LONGEST_TTL_SECONDS, slot_of
from ..._values.lock_info import LockKeys
from ..._values.tokens import TOKEN_CHARACTERS
from ...exceptions import StoreUnavailable
from ..base import CannotSubscribe, Grant, Question, Refusal
from .connections import milliseconds
from .keys import fence_of
from .listener import Hearing, Listener

_NUMBER = rb"([1-9][0-9]{0,15})"
_handed_over = re.compile(rb"\+%b:(0|[1-9][0-9]{0,3})" % _NUMBER).fullmatch
_next_holder = re.compile(rb"=%b:%b:(.+)" % (_NUMBER, _NUMBER), re.DOTALL).fullmatch


def value_of(member: bytes) -> bytes:
    """The value in a member of a wait queue, which the lock's key will get."""
    return member[2 * TOKEN_CHARACTERS :].split(b":", 2)[-1]


class RedisWaiter:
    """See `Waiter`.

    A message counts if its fence is not older than that of the lease which refused the last
    question. So none counts that was sent before, and comes late.
    """

    def __init__(self, store: Any, question: Question) -> None:
        self.ahead = 0
        self._store, self._question, self._hearing = store, question, Hearing(question.token)
        self._listeners: Sequence[Listener] = store.listeners.own()
        self._listener = self._listeners[-1]
        self._locks: list[LockKeys] = [store.keys.of(name) for name in question.names]
        self._token, self._slots = question.token, question.owner.get("slots")
        self._value: bytes = store.encoding.value_of_lease(question.token, question.owner)
        # Its number in the queue, which it keeps; and the fence of the lease that refused it.
        self._number = b""
        self._last = 0
        # Whether it may be in the queue; and whether a question has got no reply.
        self._queued = self._open = False

    @property
    def ready(self) -> bool:
        return next(each for each in self._listeners if each.free).subscribed

    @property
    def cut(self) -> bool:
        return self._hearing.cut

    @property
    def _member(self) -> bytes:
        permits = 0 if self._slots is None else len(self._locks)
        head = self._token.encode() + self._listener.id
        return b"%b%d:%b:%b" % (head, permits, milliseconds(self._question.ttl), self._value)

    def ask(self) -> Grant | Refusal:
        try:
            if not self._listener.hears(self._hearing):
                self._listener = next(e for e in self._listeners if e.add(self._hearing))
            self._listener.subscribe(self._hearing)
        except CannotSubscribe:
            # The caller polls meanwhile, and so is not in the queue: nobody would remove the waiter
            # there when the caller is granted the lock. A lock that was handed over is granted
            # anew: its lease began at a moment which the waiter does not know.
            number = self._number
            self.leave()
            self._number = number
            raise
        self._queued = self._open = True
        try:
            answer: Grant | Refusal
            joining = self._member, self._number
            answer, about = self._store.acquire_or_join(self._question, self._value, joining)
        except StoreUnavailable:
            self._abandon()  # To leave would take another time-out.
            raise
        self._open = False
        if isinstance(answer, Grant):
            self._over()
        else:
            self._number = b"%d" % int(about[0])
            self.ahead, self._last = int(about[1]), fence_of(about[2]) or 0
        return answer

    def wait(self, seconds: float) -> Grant | Refusal | None:
        deadline, hearing = clock.now() + seconds, self._hearing
        while True:
            while hearing.news:
                news, heard = hearing.news.popleft()
                answer = self._answer(news, heard)
                if isinstance(answer, Grant):
                    self._over()
                    return self._confirmed(answer)
                if answer is not None:
                    return answer
            left = deadline - clock.now()
            if left <= 0 or hearing.cut:
                return None
            self._listener.listen(hearing, left)

    def wake_by(self, wake: Callable[[], None]) -> float:
        self._listener.read_by_thread()
        self._hearing.bell.waker = wake
        if self._hearing.news or self._hearing.cut:
            wake()
        return float("inf")

    def leave(self) -> Grant | None:
        if not self._queued:
            return None
        keys = self._store.keys.of_question(self._locks, self._slots)
        words = [self._token.encode(), self._member, *map(attrgetter("member"), self._locks)]
        try:
            found = self._store.client.run("leave", keys, words)
        except BaseException:
            self._abandon()
            raise
        if self._open:
            self._abandon()  # What it has asked may reach the server later than this.
        self._over()
        if found is None:
            return None
        return self._confirmed(Grant(self._locks[found[0] - 1], fence_of(found[1])))

    def quit(self) -> None:
        with suppress(StoreUnavailable):  # The listener passes on what is handed to it.
            self.leave()
        for listener in self._listeners:
            listener.remove(self._hearing)

    def _answer(self, news: bytes, heard: float) -> Grant | Refusal | None:
        """What a message means to this waiter; None: nothing."""
        grant, said = self._granted(news), _next_holder(news)
        if grant is not None:
            return None if (grant.fence or 0) <= self._last else grant
        if said is None:
            return None
        fence, left = int(said[1]), int(said[2]) / 1000 + heard - clock.now()
        if fence < self._last or left > LONGEST_TTL_SECONDS:
            return None
        self.ahead = 0
        entry = self._store.entry(self._locks[0], said[3], max(0, int(left * 1000)), said[1])
        return Refusal((self._store.info(entry),))

    def _granted(self, news: bytes) -> Grant | None:
        """The lock that a message hands over; None: it says something else."""
        said = _handed_over(news)
        for lock in self._locks:
            if said is not None and int(said[2]) == (slot_of(lock, self._slots) or 0):
                return Grant(lock, int(said[1]))
        return None

    def _confirmed(self, grant: Grant) -> Grant | None:
        """The grant of a lock that was handed over, if enough replicas have it.

        The script that hands over cannot wait for them. So where the store asks for replicas, this
        waiter asks for the lock, which it holds, once more. None: it holds it no longer.
        """
        if not self._store.replicas.needed:
            return grant
        answer, _ = self._store.acquire_or_join(self._question, self._value)
        if isinstance(answer, Grant):
            return answer
        self._hearing.cut = True
        return None

    def _over(self) -> None:
        """It is not in the queue any more. If it asks again, it goes to the end."""
        self._number, self._queued = b"", False
        self._hearing.news.clear()
        self._listener.remove(self._hearing)

    def _abandon(self) -> None:
        self._queued = False
        self._listener.replace(self._hearing, self._pass_on)

    def _pass_on(self, news: bytes) -> None:
        """Release what is handed over although nobody waits. What was handed over before, the
        caller releases, which has given its token up."""
        if (grant := self._granted(news)) is not None:
            with suppress(StoreUnavailable):  # The lease ends by itself.
                self._store.release(grant.name, self._token)
