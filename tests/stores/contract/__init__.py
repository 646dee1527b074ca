"""
What our own stores keep beyond `django_tasklock.testing.StoreContract`: what most leave to
`BaseStore`, and some do faster; a history; a wait queue; and that their processes may fork.
"""

from __future__ import annotations

from django_tasklock.testing import StoreContract

from .keeping import Recording, Reserving
from .verbs import Forking, OtherVerbs, Rewriting, TakingSeveral
from .waiting import Waiting

__all__ = ["WholeContract"]


class WholeContract(
    Forking, OtherVerbs, Recording, Reserving, Rewriting, StoreContract, TakingSeveral, Waiting
):
    """Everything that a store of ours keeps. A subclass implements ``make_store``, and
    ``make_silent_store`` where that is possible."""
