"""
For tests: locks in memory, helpers, and the store contract for people who write a store.

`MemoryStore` keeps the locks of a project's own tests: no cache, no server, and it follows the time
that freezegun and time-machine set. `MemoryStore.clear_all` forgets what a test has left behind.
`locks_in_memory` puts it in the place of every store for one test, as pytest's fixture ``tasklock``
does. `held` has somebody else hold a lock, `outage` silences a store, and `assert_locked` and
`assert_not_locked` look.

`StoreContract` is the store contract as a test mixin. It tests the five methods that a store must
implement, and the optional ones: those that the store has itself, and the defaults of the others.

::

    class TestMyStore(StoreContract):
        def make_store(self) -> BaseStore:
            return stores["mine"]

pytest collects it as it is; with unittest, add it to a ``TestCase``. The store's own flags
say which parts of the contract apply. The locks it makes have random names, so the server
behind it may be shared, and need not be empty.
"""

import sys

if "pytest" in sys.modules:
    # Before they are imported. Otherwise an assert that fails does not say what it compared.
    for part in (
        "any_of",
        "finding",
        "granting",
        "holding",
        "noting",
        "outages",
        "recording",
        "rewriting",
        "seeing",
        "seeing_many",
        "steps",
        "waiting",
    ):
        sys.modules["pytest"].register_assert_rewrite(f"{__name__}.{part}")

from ..stores.memory import MemoryStore
from .any_of import TakingAll, TakingAny
from .assertions import assert_locked, assert_not_locked
from .finding import Finding
from .granting import Granting
from .holding import Holding
from .in_memory import LocksInMemory, locks_in_memory
from .noting import Noting
from .outages import Outages
from .recording import Recording
from .rewriting import Rewriting
from .seeing import Seeing
from .seeing_many import SeeingMany
from .situations import held, outage
from .waiting import Waiting

__all__ = [
    "LocksInMemory",
    "MemoryStore",
    "StoreContract",
    "assert_locked",
    "assert_not_locked",
    "held",
    "locks_in_memory",
    "outage",
]


class StoreContract(
    Finding,
    Granting,
    Holding,
    Noting,
    Outages,
    Recording,
    Rewriting,
    Seeing,
    SeeingMany,
    TakingAll,
    TakingAny,
    Waiting,
):
    """What every store keeps. A subclass implements ``make_store``, and ``make_silent_store``
    where that is possible."""
