"""Asking for all of several locks in one round trip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._values import clock
from .._values.tokens import new_token
from ..stores.base import BaseStore, Grant, Refusal
from .renewal import renewal

__all__ = ["AllAtOnce"]

Answer = tuple["Grant | Refusal", float]


class AllAtOnce:
    """One question for several locks, whose answers their attempts get, one after the other.

    The first attempt asks for all of them. If one is held, none is granted, and the other attempts
    ask for themselves; so they do where the store has no such question.

    Args:
        store: of the locks.
        names: of the locks, in the order in which they are taken.
    """

    def __init__(self, store: BaseStore, names: Sequence[str]) -> None:
        self._store = store
        self._ttl = 0.0
        self._started = 0.0
        self._tokens = {store.keyed(name): new_token() for name in names}
        self._asked = len(names) < 2
        self._answers: dict[str, Grant | Refusal] = {}
        self._pending: dict[str, None] = {}
        """locks that may have been granted, and that no attempt has got"""

    def token(self, name: str) -> str:
        """The token for this lock."""
        return self._tokens[name]

    def answer(self, name: str, ttl: float, owner: Mapping[str, Any]) -> Answer | None:
        """What the store says to the attempt for this lock, and when it was asked; None if the
        attempt has to ask. Raises `StoreUnavailable`."""
        if not self._asked:
            self._asked = True
            self._ttl, self._pending = ttl, dict.fromkeys(self._tokens)
            self._started = clock.now()
            # From here on the attempt gives its own token up, if it comes to nothing.
            del self._pending[name]
            found = self._store.acquire_all(self._tokens, ttl, owner)
            if found is None or isinstance(found, Refusal):
                self._pending.clear()
                if found is not None and found.holder.name == name:
                    return found, self._started
            else:
                self._answers.update(zip(self._tokens, found, strict=True))
        answer = self._answers.pop(name, None)
        self._pending.pop(name, None)
        return None if answer is None else (answer, self._started)

    def drop(self) -> None:
        """Give up the locks that were granted, and that no attempt has got."""
        while self._pending:
            name, _ = self._pending.popitem()
            left = self._started + self._ttl - clock.now()
            renewal.abandon(name, self._tokens[name], left, self._store)
