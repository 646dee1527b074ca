"""``lock(..., hold_at_least=, cooldown=, cooldown_after_error=)``."""

from __future__ import annotations

import inspect
from typing import Any, Generic, TypeVar

from .cooling import CoolingTimes
from .steps import Steps
from .taker import Taker, Template

__all__ = ["CoolingLock"]

Held = TypeVar("Held")


class CoolingLock(Generic[Held]):
    """Takes what ``taker`` takes, and lets it cool after its release."""

    def __init__(self, taker: Taker[Held], times: CoolingTimes) -> None:
        self.service = taker.service
        self.new_use = taker.new_use
        self._taker = taker
        self._times = times

    def template(self, name: Any, signature: inspect.Signature) -> Template:
        """Return what fills ``name`` from the arguments of a call."""
        return self._taker.template(name, signature)

    def take(self, name: Any, use: Any, wait: float | None) -> Steps[Held]:
        """As the taker's. Raises `InvalidLockConfig` for a store that cannot do it.

        Only what was taken as a whole cools: of several locks, those that were taken before another
        one was refused are free again at once.
        """
        self._times.check(self.service.store)
        held = yield from self._taker.take(name, use, wait)
        use.cool(self._times)
        return held
