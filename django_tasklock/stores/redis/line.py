"""Waiting without polling: a place in a lock's wait queue."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ... import clock
from ...exceptions import StoreUnavailable
from ...lease import TOKEN_LENGTH, LockInfo
from ..base import Grant, Note, Refusal
from ..record import new_record
from .listener import NEXT
from .mailbox import Mailbox

__all__ = ["Place", "value_of_member"]


def value_of_member(member: bytes) -> bytes:
    """What the lock's key will be set to when this member of the queue has its turn."""
    return member[2 * TOKEN_LENGTH :].split(b":", 2)[-1]


class Place:
    """One caller's place in the wait queue of one lock.

    Each question has a number, which is part of the member of the queue and of every message
    for it: a message that was read late, after another question, says nothing any more.
    """

    def __init__(
        self, store: Any, name: str, token: str, ttl_ms: int, owner: Mapping[str, Any]
    ) -> None:
        self._store = store
        self._name = name
        self._token = token.encode()
        self._ttl_ms = ttl_ms
        self._owner = owner
        self.note: Note | None = None
        self._box: Mailbox | None = None
        self._question = 0
        self._member = b""
        self._before = b""
        """the member of the question before, which may stand in the queue still"""
        self._number = b""
        self._asked = 0.0
        self._server_then = 0

    @cached_property
    def _value(self) -> Any:
        # Most who ask whether they could stand in the queue at once never do.
        return self._store.client.encode(new_record(self._token.decode(), self._owner))

    @property
    def ready(self) -> bool:
        return self._box is not None or self._store.listener.at_hand()

    def ask(self) -> Grant | Refusal:
        if self._box is None or self._box.cut:
            self._listen_anew()
        assert self._box is not None
        self._before, self._member = self._member, self._next_member(self._box)
        asked = clock.now()
        answer = self._store.ask(
            self._name, self._value, self._ttl_ms, self._member, self._before, self._number,
            self.note,
        )  # fmt: skip
        if isinstance(answer, Grant):
            self._close(keep=True)
            return answer
        refusal, self._server_then, self._number = answer
        self._before = b""
        self._asked = asked
        return refusal  # type: ignore[no-any-return]

    def wait(self, seconds: float) -> Grant | Refusal | None:
        box = self._box
        assert box is not None
        self._store.listener.listen(box, clock.now() + seconds)
        mine = b"%b%d:" % (self._token, self._question)
        news = None
        while box.letters:
            letter = box.letters.popleft()
            if not letter.startswith(mine):
                continue  # For another question, or for who had this mailbox before.
            letter = letter[len(mine) :]
            if letter.startswith(NEXT):
                news = self._next_holder(letter[len(NEXT) :])
                continue
            fence, _, moment = letter.partition(b":")
            # It has had its turn, even if it should have slept through it.
            self._member = self._number = b""
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
        # Nobody listens to this channel any more: a question that was interrupted may reach the
        # server after all, and then stand in the queue for nobody.
        try:
            self._leave(keep=False)
        except StoreUnavailable:
            pass  # The queue goes away by itself.

    def leave(self) -> Grant | None:
        return self._leave(keep=True)

    def _leave(self, *, keep: bool) -> Grant | None:
        if not self._member:
            self._close(keep=keep)
            return None
        answered = False
        try:
            asked = clock.now()
            fence = self._store.leave_line(self._name, self._value, self._member, self._before)
            answered = True
        finally:
            self._close(keep=keep and answered)
        self._member = b""
        if fence is None:
            return None
        return Grant(int(fence), self._value, min(asked, self._asked))

    def _next_member(self, box: Mailbox) -> bytes:
        self._question += 1
        return b"%b%b%d:%d:%b" % (
            self._token,
            box.id.encode(),
            self._question,
            self._ttl_ms,
            self._value,
        )

    def _listen_anew(self) -> None:
        # The old channel hears nothing any more. Its member of the queue is replaced by the next
        # question, and if the lock was handed over meanwhile, that is granted: the value is the
        # same.
        self._close(keep=False)
        self._box = self._store.listener.join()

    def _close(self, *, keep: bool) -> None:
        if self._box is not None:
            self._store.listener.leave(self._box, keep=keep)
            self._box = None
