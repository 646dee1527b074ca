"""What a mutant is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Mutant"]


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    ``name`` says what is missing. In ``file``, ``old`` occurs once and becomes ``new``. ``tests``
    are pytest's arguments: at least one of these tests must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: Sequence[str]
    chaos: bool = False
    """a short run of `tests.nightly.chaos` must find a violation too: `tests.mutants.on_locks`"""
    chaos_tasks: bool = False
    """a short run of `tests.chaos_tasks` must find a violation as well: `tests.mutants.on_tasks`"""
