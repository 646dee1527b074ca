"""Objects that compute some fields when the first of them is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Deferred"]


class Deferred:
    """An object with slots, some of which may be left empty when it is made.

    Reading an empty one calls ``_rest(*_of)``, which returns all empty fields by name, and fills
    them. So a long list costs little where only a few of its objects are read. (A partial for each
    object would cost more: with 100,000 of them the garbage collector took half of the time.)
    """

    __slots__ = ("_of", "_rest")

    _rest: Callable[..., Mapping[str, Any]]
    _of: tuple[Any, ...]

    def is_like(self, other: Deferred) -> bool:
        """Whether the fields that were left empty were, or would be, computed from the same."""
        try:
            return self._rest is other._rest and self._of == other._of
        except AttributeError:  # One of them was made with all of its fields.
            return False

    def __getattr__(self, name: str) -> Any:
        # Python asks here only for what it did not find.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        fill = object.__setattr__
        for field, value in self._rest(*self._of).items():
            fill(self, field, value)
        return object.__getattribute__(self, name)
