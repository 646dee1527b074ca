"""``lock([name, ...])``: several locks for the length of a block or of a call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from .all_at_once import AllAtOnce
from .all_or_none import leave_all, take_all
from .cooling import CoolingTimes
from .lease import Lease
from .names import NameTemplate
from .steps import Steps
from .taker import OneLock
from .use import Use

__all__ = ["SeveralLocks", "UseOfSeveral"]


class UseOfSeveral(Use):
    """The ``__exit__`` of one block that holds several locks.

    ``parts``: a use for each of them, in the order in which they were taken. A part gives its lease
    up when it is garbage-collected, and so does this use.
    """

    __slots__ = ("parts",)

    def __init__(self, by_hand: Any) -> None:
        self.parts: list[Use] = []
        super().__init__(by_hand)

    def leave(self, *, failed: bool, quiet: bool | None = None) -> None:
        """Release the leases, the last one first, whatever becomes of the others.

        Unless ``quiet``, raises `LeaseLost` if one of them was lost, or else `StoreUnavailable`.
        """
        try:
            if self.parts:
                error = leave_all(self.parts, failed=failed)
                if error is not None and not (failed if quiet is None else quiet):
                    raise error
            else:
                assert self.by_hand is not None
                entered: UseOfSeveral = self.by_hand.take()
                entered.leave(failed=failed, quiet=quiet)
        finally:
            self.drop()

    def cool(self, times: CoolingTimes | None) -> None:
        """As `Use.cool`, for each lease that no other block has."""
        for part in self.parts:
            part.cool(times)

    def keep(self) -> None:
        """Have a later call of ``__exit__`` leave this use.

        The `lock()` object refers to this use from now on. If both go away, the leases are given
        up.
        """
        assert self.by_hand is not None
        self.by_hand.add(self)
        self.by_hand = None

    def drop(self) -> None:
        """Give up the leases that were not released."""
        for part in reversed(self.parts):
            part.drop()
        self.parts.clear()

    @property
    def renew(self) -> bool:
        """Whether all leases are renewed."""
        return all(lease.renew for lease in self._leases())

    @renew.setter
    def renew(self, renew: bool) -> None:
        for lease in self._leases():
            lease.renew = renew

    def _leases(self) -> list[Any]:
        # A part that may share its lease stands for it.
        return [part.lease or part for part in self.parts]


class _Templates:
    """A `NameTemplate` for each name."""

    def __init__(self, names: Sequence[str], signature: inspect.Signature) -> None:
        self._templates = [NameTemplate(name, signature) for name in names]

    def fill(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
        return [template.fill(args, kwargs) for template in self._templates]


class SeveralLocks:
    """Takes several locks, each as ``one`` takes it."""

    new_use: type[Use] = UseOfSeveral

    def __init__(self, one: OneLock) -> None:
        self._one = one
        self.service = one.service

    def template(self, name: Sequence[str], signature: inspect.Signature) -> _Templates:
        """Return what fills the names from the arguments of a call."""
        return _Templates(name, signature)

    def take(
        self, name: Sequence[str], use: UseOfSeveral, wait: float | None
    ) -> Steps[list[Lease]]:
        """Take the locks. Return the leases in the order of the names."""
        one, templates = self._one, dict(zip(name, use.template or (), strict=False))

        def take(each: str, part: Use, left: float | None, together: AllAtOnce) -> Steps[Lease]:
            part.template = templates.get(each)
            return one.take(each, part, left, together)

        return take_all(name, take, one.new_use, wait, use.parts, self.service)
