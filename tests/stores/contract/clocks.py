"""What a store that reads several clocks must say of itself."""

from __future__ import annotations

from django_tasklock.testing.steps import Contract

__all__ = ["Clocks"]


class Clocks(Contract):
    one_clock = True
    """False for a store whose parts have clocks of their own, and which does not always read the
    same ones: two reads may then show two times at which a lease was acquired."""
