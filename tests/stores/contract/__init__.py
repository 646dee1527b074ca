"""
What our own stores keep beyond `django_tasklock.testing.StoreContract`: the optional methods.

Of a store that has only the required methods, these mixins test the defaults in the base classes.
"""

from __future__ import annotations

from django_tasklock.testing import StoreContract

from .listing import Listing
from .noting import OtherNotes
from .other_verbs import OtherVerbs
from .outages import OptionalOutages
from .recording import Recording
from .rewriting import Rewriting
from .seeing_many import SeeingMany
from .taking_several import TakingAll, TakingAny
from .waiting_since import WaitingSince

__all__ = ["OptionalContract", "WholeContract"]


class OptionalContract(
    Listing,
    OptionalOutages,
    OtherNotes,
    OtherVerbs,
    Recording,
    Rewriting,
    SeeingMany,
    TakingAll,
    TakingAny,
    WaitingSince,
):
    """The optional methods, or their defaults."""


class WholeContract(OptionalContract, StoreContract):
    """Everything that a store of ours keeps. A subclass implements ``make_store``, and
    ``make_silent_store`` where that is possible."""
