"""Questions about rows that may fail without harm to the transaction of a request."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django.db import connections, router, transaction
from django.db.models import Model

__all__ = ["in_savepoint"]


def in_savepoint(model: type[Model]) -> AbstractContextManager[Any]:
    """Return a block for questions about rows of the model.

    Where a transaction is open, as with ATOMIC_REQUESTS, an error in the block would end it: then
    the block is a savepoint.
    """
    using = router.db_for_read(model)
    return transaction.atomic(using) if connections[using].in_atomic_block else nullcontext()
