"""Waiting in a lock's wait queue, without polling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Protocol

from ..._values import clock
from ..._values.lock_info import LockInfo
from ..._values.tokens import TOKEN_CHARACTERS
from ...exceptions import StoreUnavailable
from ..base import Grant, Note, Refusal
from ..record import new_record
from .channel import Channel
from .handover import HandedOver, read

__all__ = ["ChannelSource", "RedisWaiter", "value_of_member"]


def value_of_member(member: bytes) -> bytes:
    """The record in a member of the queue: the value that the lock's key will get."""
    return member[2 * TOKEN_CHARACTERS :].split(b":", 2)[-1]


CLOCKS_DIFFER_SECONDS = 0.1
"""by how much more time may have passed on the server's clock than on ours"""


class ChannelSource(Protocol):
    """Subscribed channels, for waiters; `Subscriber` says what is meant."""

    def has_idle_channel(self) -> bool:
        """Whether `join` can return a channel that is subscribed already."""

    def join(self) -> Channel:
        """Return a channel that is subscribed, for one waiter."""

    def leave(self, channel: Channel, *, keep: bool) -> None:
        """Give a channel back."""

    def listen(self, channel: Channel, deadline: float) -> None:
        """Return when the channel has news, when it was cut, or at the deadline."""

    def wake_by(self, channel: Channel, wake: Callable[[], None]) -> None:
        """Have ``wake`` called when the channel has news, or was cut. Nobody has to listen."""

    def is_doubtful(self) -> bool:
        """Whether nothing was heard for so long that `join` has to look."""

    def in_use(self) -> bool:
        """Whether a waiter of this process listens now."""


class RedisWaiter:
    """One caller that waits for one lock; see `Waiter`.

    Each question has a number, which is part of the member of the queue and of every message for
    it. So a message for an earlier question, which comes late, is ignored.
    """

    def __init__(
        self, store: Any, name: str, token: str, ttl_ms: int, owner: Mapping[str, Any]
    ) -> None:
        self._store = store
        self._subscriber: ChannelSource = store.subscriber_of(name)
        self._name = name
        self._token = token.encode()
        self._ttl_ms = ttl_ms
        self._owner = owner
        self.note: Note | None = None
        self.ahead = 0
        self._channel: Channel | None = None
        self._question = 0
        self._member = b""
        self._before = b""
        """the member of the question before, which may still be in the queue"""
        self._number = b""
        self._asked = 0.0
        self._server_then = 0

    @cached_property
    def _value(self) -> Any:
        # Made when it is needed: most waiters are only asked whether they are `ready`, and are not.
        return self._store.client.encode(new_record(self._token.decode(), self._owner))

    @property
    def ready(self) -> bool:
        return self._channel is not None or self._subscriber.has_idle_channel()

    def ask(self) -> Grant | Refusal:
        if self._channel is None or self._channel.cut or self._subscriber.is_doubtful():
            self._subscribe_again()
        assert self._channel is not None
        self._before, self._member = self._member, self._next_member(self._channel)
        asked = clock.now()
        answer = self._store.ask(
            self._name, self._value, self._ttl_ms, self._member, self._before, self._number,
            self.note,
        )  # fmt: skip
        if isinstance(answer, Grant):
            self._close(keep=True)
            return answer
        refusal, self._server_then, self._number, before = answer
        self.ahead = before
        self._before = b""
        self._asked = asked
        return refusal  # type: ignore[no-any-return]

    def wait(self, seconds: float) -> Grant | Refusal | None:
        channel = self._channel
        assert channel is not None
        self._subscriber.listen(channel, clock.now() + seconds)
        question = b"%b%d" % (self._token, self._question)
        refusal = None
        while channel.messages:
            # It may be for another question, or for another waiter that had this channel before.
            news = read(channel.messages.popleft(), question)
            if isinstance(news, HandedOver):
                passed = (news.moment - self._server_then) / 1_000_000
                if passed < 0 or self._asked + passed > clock.now() + CLOCKS_DIFFER_SECONDS:
                    # It is older than the refusal: the question was sent again after a lost reply,
                    # and is in the queue again. Or the server's clock was set back; or forward:
                    # more time has passed there than here.
                    answer = self._ask_outside()
                    if isinstance(answer, Refusal):
                        refusal = answer
                        continue
                    self._member = self._number = b""
                    self._close(keep=True)
                    return answer
                # The queue does not have it any more, even if the lease is over by now.
                self._member = self._number = b""
                self._close(keep=True)
                return self._confirmed(Grant(news.fence, self._value, self._began(news.moment)))
            if news is not None:
                left = max(0.0, self._began(news.moment) + news.ttl - clock.now())
                info: LockInfo = self._store.records.info(self._name, news.value, left, news.fence)
                refusal, self.ahead = Refusal(info), 0
        return refusal

    def wake_by(self, wake: Callable[[], None]) -> float:
        """`WakingWaiter.wake_by`."""
        assert self._channel is not None
        self._subscriber.wake_by(self._channel, wake)
        return math.inf

    def _began(self, moment: int) -> float:
        """When a lock was handed over, on `clock.now`.

        That may be long before this waiter woke. It is the moment of the last question, plus the
        time that passed since on the server's clock.
        """
        began = self._asked + max(0.0, (moment - self._server_then) / 1_000_000)
        return min(clock.now(), began)

    @property
    def cut(self) -> bool:
        return self._channel is None or self._channel.cut

    def quit(self) -> None:
        # The channel is unsubscribed: an interrupted question may still reach the server, and its
        # member of the queue must then count as dead.
        try:
            self._leave(keep=False)
        except StoreUnavailable:
            pass  # The queue expires.

    def drop(self) -> None:
        """`quit` without a call: a member to whose channel nobody listens is passed over."""
        self._member = b""
        self._close(keep=False)

    def leave(self) -> Grant | None:
        grant = self._leave(keep=True)
        return None if grant is None else self._confirmed(grant)

    def _confirmed(self, grant: Grant) -> Grant | None:
        """The grant of a lock that was handed over, if enough replicas have it.

        The script that hands over cannot wait for them. So where the store asks for replicas, this
        waiter asks for the lock, which it holds, once more. None: it holds it no longer.
        """
        if not self._store.replicas.needed:
            return grant
        answer = self._ask_outside()
        return answer if isinstance(answer, Grant) else None

    def _ask_outside(self) -> Grant | Refusal:
        """Ask for the lock without joining the queue. It is granted if this waiter holds it."""
        asked = clock.now()
        answer = self._store.ask(self._name, self._value, self._ttl_ms, note=self.note)
        return answer._replace(started=asked) if isinstance(answer, Grant) else answer[0]

    def _leave(self, *, keep: bool) -> Grant | None:
        if not self._member:
            self._close(keep=keep)
            return None
        answered = False
        try:
            asked = clock.now()
            fence = self._store.leave_queue(self._name, self._value, self._member, self._before)
            answered = True
        except StoreUnavailable:
            # `quit` would ask again, for another time-out. Nobody listens: it is passed over.
            self._member = b""
            raise
        finally:
            self._close(keep=keep and answered)
        self._member = b""
        if fence is None:
            return None
        return Grant(int(fence), self._value, min(asked, self._asked))

    def _next_member(self, channel: Channel) -> bytes:
        self._question += 1
        return b"%b%b%d:%d:%b" % (
            self._token,
            channel.id.encode(),
            self._question,
            self._ttl_ms,
            self._value,
        )

    def _subscribe_again(self) -> None:
        # The old channel gets no messages any more. The next question replaces its member of the
        # queue. If the lock was handed over meanwhile, the next question is granted, because the
        # value of the lock's key is the same.
        self._close(keep=False)
        self._channel = self._subscriber.join()

    def _close(self, *, keep: bool) -> None:
        if self._channel is not None:
            self._subscriber.leave(self._channel, keep=keep)
            self._channel = None
