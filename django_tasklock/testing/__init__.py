"""
For tests: locks in memory, helpers, and the store contract for people who write a store.

`MemoryStore` keeps the locks of a project's own tests: no cache, no server, and it follows the time
that freezegun and time-machine set. `MemoryStore.clear_all` forgets what a test has left behind.
`locks_in_memory` puts it in the place of every store for one test, as pytest's fixture ``tasklock``
does. `held` has somebody else hold a lock, `outage` silences a store, and `assert_locked` and
`assert_not_locked` look.

`StoreContract` is the store contract as a test mixin. It tests the three methods of a store; what a
holder, an operator and a task do with a lock, which is made of them; a list, if the store has one;
and that an outage is reported. A wait queue of the store's own is not tested.

::

    class TestMyStore(StoreContract):
        def make_store(self) -> BaseStore:
            return stores["mine"]

pytest collects it as it is; with unittest, add it to a ``TestCase``. The store's own flags
say which parts of the contract apply. The locks it makes have random names, so the server
behind it may be shared, and need not be empty.
"""

from ..stores.memory import MemoryStore
from .contract import StoreContract
from .locks import LocksInMemory, assert_locked, assert_not_locked, held, locks_in_memory, outage

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
