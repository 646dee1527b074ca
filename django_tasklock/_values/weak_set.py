"""Objects that nobody keeps alive, for several threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar
from weakref import ref

__all__ = ["SharedWeakSet"]

Item = TypeVar("Item")


class SharedWeakSet(Generic[Item]):
    """A `weakref.WeakSet` that one thread may iterate over while another one adds to it.

    `weakref.WeakSet` raises `RuntimeError` then, "Set changed size during iteration". Here an
    iteration begins with a copy of the references, made in one step of the interpreter.
    """

    def __init__(self) -> None:
        references: dict[ref[Item], None] = {}
        self._references = references

        def forget(reference: ref[Item]) -> None:
            references.pop(reference, None)

        self._forget = forget

    def add(self, item: Item) -> None:
        self._references.setdefault(ref(item, self._forget))

    def discard(self, item: Item) -> None:
        self._references.pop(ref(item), None)

    def __iter__(self) -> Iterator[Item]:
        for reference in list(self._references):
            item = reference()
            if item is not None:
                yield item

    def clear(self) -> None:
        self._references.clear()
