"""Taking one of several locks, for ``slots=N``, or all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .lease_notes import LeaseNotes
from .values import AllHeld, Grant, Note, OneOf, Refusal

__all__ = ["AnyOf"]


class AnyOf(LeaseNotes):
    """The optional methods that take any one of several locks, or all of them.

    What the default of `acquire_any` costs: one `get`, one acquire for each lock that is found held
    before the free one, and one for that. A caller that comes between two of these calls may be
    overtaken by this one.
    """

    def acquire_all(
        self, tokens: Mapping[str, str], ttl: float, owner: Mapping[str, Any]
    ) -> Sequence[Grant] | Refusal | None:
        """Grant several locks in one step, all or none.

        Args:
            tokens: the tokens by the locks' names.
            ttl, owner: as for `acquire`.

        Returns:
            A `Grant` for each, in their order; or what holds one of them: the others are not
            granted then. None if the store cannot do that: the caller takes one after the other.
            Raises `StoreUnavailable`.
        """
        return None

    def acquire_any(
        self,
        names: Sequence[str],
        gate: str | None,
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        note: Note | None = None,
    ) -> OneOf | AllHeld:
        """Grant the first of several locks that is free, unless somebody waits for one of them.

        Args:
            names: the locks, in the order in which they are tried.
            gate: a lock. While anything holds it, somebody waits, and nothing is granted. None:
                the caller itself is the first of those who wait.
            token, ttl, owner: as for `acquire`.
            note: as for `acquire_with_note`.

        Returns:
            `OneOf`, or `AllHeld` with what is in the way. Raises `StoreUnavailable`.
        """
        first = None if gate is None else self.get(gate)
        if first is not None:
            return AllHeld((), first)
        holders = []
        for name in names:
            if note is None:
                answer = self.acquire(name, token, ttl, owner)
            else:
                answer = self.acquire_with_note(name, token, ttl, owner, note)
            if isinstance(answer, Grant):
                return OneOf(name, answer, None)
            assert isinstance(answer, Refusal)
            holders.append(answer.holder)
        return AllHeld(tuple(holders), None)
