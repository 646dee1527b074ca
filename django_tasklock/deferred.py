"""Fields that are worked out when the first of them is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Deferred"]


class Deferred:
    """An object with slots, some of which may be left empty when it is made.

    The first look at an empty one calls ``_rest`` with ``_of``; it returns the empty fields by
    name, and all are filled: a list of many, of which few are looked at, costs what is seen.
    (Not a partial for each: half of what a list of 100,000 took was the garbage collector's.)
    """

    __slots__ = ("_of", "_rest")

    _rest: Callable[..., Mapping[str, Any]]
    _of: tuple[Any, ...]

    def __getattr__(self, name: str) -> Any:
        # Python asks here only for what it did not find.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        fill = object.__setattr__
        for field, value in self._rest(*self._of).items():
            fill(self, field, value)
        return object.__getattribute__(self, name)
