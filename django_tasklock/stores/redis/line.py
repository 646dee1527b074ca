"""Waiting without polling: a place in a lock's line."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ... import clock
from ...exceptions import StoreUnavailable
from ...lease import TOKEN_LENGTH, LockInfo
from ..base import Grant, Refusal
from ..record import new_record
from .listener import NEXT
from .mailbox import Mailbox

__all__ = ["Place", "value_of_member"]


def value_of_member(member: bytes) -> bytes:
    """What the lock's key will be set to when this member of the line has its turn."""
    return member[2 * TOKEN_LENGTH :].partition(b":")[2]


class Place:
    """One caller's place in the line of one lock."""

    def __init__(
        self, store: Any, name: str, token: str, ttl_ms: int, owner: Mapping[str, Any]
    ) -> None:
        self._store = store
        self._name = name
        self._token = token.encode()
        self._ttl_ms = ttl_ms
        self._owner = owner
        self._box: Mailbox | None = None
        self._member = b""
        self._asked = 0.0
        self._server_then = 0

    @cached_property
    def _value(self) -> Any:
        # Most who ask whether they could stand in line at once never do.
        return self._store.client.encode(new_record(self._token.decode(), self._owner))

    @property
    def ready(self) -> bool:
        return self._box is not None or self._store.listener.at_hand()

    def ask(self) -> Grant | Refusal:
        if self._box is None or self._box.cut:
            self._listen_anew()
        asked = clock.now()
        answer = self._store.ask(self._name, self._value, self._ttl_ms, self._member)
        if isinstance(answer, Grant):
            self._close(keep=True)
            return answer
        refusal, self._server_then = answer
        self._asked = asked
        return refusal  # type: ignore[no-any-return]

    def wait(self, seconds: float) -> Grant | Refusal | None:
        box = self._box
        assert box is not None
        self._store.listener.listen(box, clock.now() + seconds)
        news = None
        while box.letters:
            letter = box.letters.popleft()
            if not letter.startswith(self._token):
                continue  # For who had this mailbox before.
            if letter[TOKEN_LENGTH:].startswith(NEXT):
                news = self._next_holder(letter[TOKEN_LENGTH + 1 :])
                continue
            fence, _, moment = letter[TOKEN_LENGTH:].partition(b":")
            self._close(keep=True)
            return Grant(int(fence), self._value, min(clock.now(), self._began(moment)))
        return news

    def _next_holder(self, letter: bytes) -> Refusal:
        fence, moment, ttl, value = letter.split(b":", 3)
        left = max(0.0, self._began(moment) + int(ttl) / 1000 - clock.now())
        info: LockInfo = self._store.info(self._name, value, left, fence)
        return Refusal(info)

    def _began(self, moment: bytes) -> float:
        """When, on `clock.now`, a lock was handed over, which may be well before we were woken:
        counted from our question by what has passed on the server's clock."""
        return self._asked + max(0.0, (int(moment) - self._server_then) / 1_000_000)

    @property
    def cut(self) -> bool:
        return self._box is None or self._box.cut

    def quit(self) -> None:
        try:
            self.leave()
        except StoreUnavailable:
            pass  # The line goes away by itself, and this channel is no longer listened to.

    def leave(self) -> Grant | None:
        box = self._box
        if box is None:
            return None
        keep = False
        try:
            asked = clock.now()
            fence = self._store.leave_line(self._name, self._value, self._member)
            keep = True
        finally:
            self._close(keep=keep)
        if fence is None:
            return None
        return Grant(int(fence), self._value, min(asked, self._asked))

    def _listen_anew(self) -> None:
        if self._box is not None and self._member:
            # The old channel is deaf, and so is its member of the line. If the lock was handed
            # over meanwhile, asking again is granted: the value is the same.
            self._store.leave_line(self._name, self._value, self._member)
            self._close(keep=False)
        self._box = self._store.listener.join()
        self._member = b"%b%b%d:%b" % (
            self._token,
            self._box.id.encode(),
            self._ttl_ms,
            self._value,
        )

    def _close(self, *, keep: bool) -> None:
        if self._box is not None:
            self._store.listener.leave(self._box, keep=keep)
            self._box = None
