"""A lock's name, or a note's key, together with the physical key that its store made of it."""

from __future__ import annotations

from typing import Any

__all__ = ["Keyed", "key_of"]


class Keyed(str):
    """A name that brings its physical key along, so that whoever gets it finds the same one.

    A cache's KEY_FUNCTION may look at the thread, for its tenant. So the key is made once, in the
    caller's thread, and a lease, a note or a `LockInfo` keeps it. Everybody else takes this for the
    plain name: it is equal to it.
    """

    __slots__ = ("alias", "key")

    alias: str
    """of the store; any other store makes a key of its own"""
    key: str

    @classmethod
    def of(cls, name: str, key: str, alias: str) -> Keyed:
        """The name with the ``key`` that the store ``alias`` has made of it."""
        new = cls(name)
        new.key, new.alias = key, alias
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        return Keyed.of, (str(self), self.key, self.alias)


def key_of(name: str) -> str:
    """What tells a lock from those with the same name under other keys."""
    return name.key if isinstance(name, Keyed) else name
