"""The pytest plugin of django-tasklock: the fixture ``tasklock``.

pytest imports it at its start, in every project of the environment, before Django has settings. So
it imports nothing that needs them until a test asks for the fixture. ``-p no:tasklock`` turns it
off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing.locks import LocksInMemory

__all__ = ["tasklock"]


@pytest.fixture
def tasklock() -> Iterator[LocksInMemory]:
    """Locks in memory for this test, in every store of TASKLOCK, with helpers: ``held``,
    ``outage``, ``assert_locked``, ``assert_not_locked`` and ``clear``."""
    from .testing.locks import locks_in_memory

    with locks_in_memory() as helpers:
        yield helpers
