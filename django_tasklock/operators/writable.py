"""Whether a store can be written. One that is full, or a replica, may answer every question and
grant no lock."""

from __future__ import annotations

from .._values.tokens import new_token
from ..exceptions import StoreUnavailable
from ..stores.base import BaseStore

# Longer than a release may be late.
TRIED_SECONDS = 10.0


def cannot_write(store: BaseStore, near: str = "") -> str:
    """Return why a store grants no lock, as it says it itself; "" if it grants one.

    It takes a lease that no list shows, and releases it. ``near``: the lock that it is about: in a
    cluster its node is asked.
    """
    # As that of a note: no lock's name has a space.
    name, token = f" tried {near}", new_token()
    try:
        # A refusal is good too: somebody else has just written it.
        store.acquire([name], token, TRIED_SECONDS, {})
        store.release(name, token)
    except StoreUnavailable as error:
        return error.reason
    return ""
