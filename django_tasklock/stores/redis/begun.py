"""Calls whose script was sent, and whose reply is read later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from redis.exceptions import RedisError

from ..._compat.redis_halves import FAILED, NOT_ALL, can_send, read_reply, reader, send
from ..._values import clock
from ..membership import Unfinished
from .connections import is_cut

__all__ = ["RedisBegun", "Sending", "Sent"]

T = TypeVar("T")

IDLE_TRUST_SECONDS = 0.5
"""an idle connection that was used less than this ago is not checked for being closed"""


class Sending:
    """The part of `Connections` that sends a command, and leaves the reply to others.

    As in `Connections.exchange`, one list refers to the connection, which becomes idle again only
    after the whole reply was read.
    """

    _idle: deque[tuple[Any, float]]
    _numbers: Iterator[int]

    def _keep(self, own: list[Any], private: bool) -> None:
        raise NotImplementedError

    def _close(self, own: list[Any]) -> None:
        raise NotImplementedError

    def _failed(self, own: list[Any], error: BaseException) -> None:
        raise NotImplementedError

    def begin(self, command: Sequence[bytes], *, look: bool) -> Sent | None:
        """Send a command on an idle connection, without waiting for anything.

        Args:
            command: its words.
            look: whether a connection must be checked for being closed, however short ago it was
                used: for a command that may not be sent twice.

        Returns:
            None if it was not sent: there is no idle connection, or none of a kind for this.
        """
        number = b"%d" % next(self._numbers)
        own: list[Any] = []
        try:
            try:
                own += self._idle.pop()
            except IndexError:
                return None
            since = own.pop()
            if not can_send(own[0]):
                self._idle.appendleft((own.pop(), since))
                return None
            look = look or clock.now() - since >= IDLE_TRUST_SECONDS
            if not (look and is_cut(own[0])) and send(own[0], (*command, number)):
                return Sent(self, own, number)
            self._close(own)
            return None
        except BaseException as error:
            self._failed(own, error)
            raise


class Sent:
    """A command that was sent."""

    __slots__ = ("_connections", "_number", "_own", "_reader")

    def __init__(self, connections: Sending, own: list[Any], number: bytes) -> None:
        self._connections, self._own, self._number = connections, own, number
        self._reader = reader()

    def fileno(self) -> int:
        """The descriptor on which the reply comes."""
        made: int = self._own[0]._sock.fileno()
        return made

    def reply(self, *, wait: bool) -> Any:
        """`read_reply`. With a whole reply, and with an error, it gives the connection back."""
        try:
            answer = read_reply(self._own[0], self._reader, self._number, wait=wait)
            if answer is not NOT_ALL:
                self._connections._keep(self._own, False)
            return answer
        except BaseException as error:
            self._connections._failed(self._own, error)
            raise

    def drop(self) -> None:
        """Close the connection, if the reply was not read."""
        self._connections._close(self._own)


class RedisBegun(Generic[T]):
    """`membership.Begun`.

    Args:
        sent: the script.
        said: what the script's reply comes to; None: more calls are needed.
        otherwise: makes the rest of the call, or the whole of it again. Its argument is the error
            with which the reply was lost; None if the server has answered.
    """

    __slots__ = ("_otherwise", "_rest", "_said", "_sent")

    def __init__(
        self,
        sent: Sent,
        said: Callable[[Any], T | None],
        otherwise: Callable[[BaseException | None], T],
    ) -> None:
        self._sent, self._said, self._otherwise = sent, said, otherwise
        self._rest: Callable[[], T] | None = None

    def fileno(self) -> int:
        return self._sent.fileno()

    def read(self) -> T:
        return self._read(wait=False)

    def finish(self) -> T:
        if self._rest is None:
            try:
                return self._read(wait=True)
            except Unfinished:
                pass
        assert self._rest is not None
        return self._rest()

    def drop(self) -> None:
        self._sent.drop()

    def _read(self, *, wait: bool) -> T:
        error: BaseException | None = None
        try:
            reply = self._sent.reply(wait=wait)
        except (RedisError, OSError) as lost:
            error = lost
        else:
            if reply is NOT_ALL:
                raise Unfinished
            said = None if reply is FAILED else self._said(reply)
            if said is not None:
                return said
        self._rest = partial(self._otherwise, error)
        raise Unfinished
