"""
The store contract as a test mixin, for people who write a store.

::

    class TestMyStore(StoreContract):
        def make_store(self) -> BaseStore:
            return stores["mine"]

pytest collects it as it is; with unittest, add it to a ``TestCase``. The store's own flags
say which parts of the contract apply. The locks it makes have random names, so the server
behind it may be shared, and need not be empty.
"""

from .granting import Granting
from .holding import Holding
from .noting import Noting
from .seeing import Seeing
from .waiting import Waiting

__all__ = ["StoreContract"]


class StoreContract(Granting, Holding, Noting, Seeing, Waiting):
    """What every store keeps. A subclass implements `make_store`."""
