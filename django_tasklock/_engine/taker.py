"""How the block of a `lock()` takes what it holds."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from ..exceptions import LockNotAcquired
from .all_at_once import AllAtOnce
from .lease import Lease
from .names import NameTemplate
from .service import LockService
from .steps import Steps, steps_of
from .use import Use

__all__ = ["OneLock", "Taker", "Template"]

Held_co = TypeVar("Held_co", covariant=True)


class Template(Protocol):
    """Makes the name, or the names, for one call of a decorated function."""

    def fill(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any: ...


class Taker(Protocol[Held_co]):
    """What differs between the kinds of `lock()`."""

    service: LockService
    new_use: type[Use]
    """makes the use for one block or call"""

    def template(self, name: Any, signature: inspect.Signature) -> Template:
        """Return what fills ``name`` from the arguments of a call."""

    def take(self, name: Any, use: Any, wait: float | None) -> Steps[Held_co]:
        """Make the steps that take ``name`` for ``use``, which gets each lease as soon as there is
        one.

        Raises `LockNotAcquired` and `StoreUnavailable`. The caller drops ``use`` if this raises.
        """


class OneLock:
    """Takes one lock."""

    new_use: type[Use] = Use
    template: ClassVar[type[NameTemplate]] = NameTemplate

    def __init__(
        self, service: LockService, ttl: float | None, renew: bool, slots: int = 1
    ) -> None:
        self.service = service
        self.ttl = ttl
        self.renew = renew
        self.slots = slots

    def take(
        self, name: str, use: Use, wait: float | None, together: AllAtOnce | None = None
    ) -> Steps[Lease]:
        """Take the lock ``name``. Raises `LockNotAcquired` and `StoreUnavailable`.

        ``together``: that of `LockService.try_acquire`.
        """
        trying = steps_of(self.service.try_acquire)
        won = yield from trying(
            name, ttl=self.ttl, wait=wait, renew=self.renew, use=use, slots=self.slots,
            together=together,
        )  # fmt: skip
        if isinstance(won, Lease):
            return won
        raise LockNotAcquired(name, won)
