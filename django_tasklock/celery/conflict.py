"""What the other files of this room ask of a conflict: what becomes of a call whose lock another
has.

The conflicts themselves are in ``conflicts.py``, a class each.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from .._values.lock_info import LockInfo


class Conflict:
    """One value of ``on_conflict``. It has no state."""

    # What a task with it does at other points of a message's life: a `Step` each.
    steps: Sequence[Any] = ()
    # What becomes of a refused call, in words: it would "be skipped".
    outcome: str
    # Whether a refused call may succeed without a run of its own.
    skips = False
    # Whether a refused message goes back to its queue; then it keeps what it has reserved.
    waits = False
    # Whether a refused message waits for others, too: they are skipped, and rely on its run.
    has_follow_up = False
    # Whether a later call replaces an earlier one that runs.
    replaces = False

    def chosen(self, run: Any, holder: LockInfo) -> Conflict:
        """Return the conflict that counts for this refusal. Raises what ends the call."""
        return self

    def refused(self, run: Any, holder: LockInfo) -> Any:
        """Called when another has the lock, and no `Step` has kept the message. Returns the call's
        result, or raises what ends the call."""
        raise NotImplementedError

    def body(self, run: Any, lease: Any) -> Any:
        """Return the context of the body. At its end it raises what ends the run instead."""
        return nullcontext()

    def reserves(self, message: Any) -> dict[str, str]:
        """Return the keys of the store, and their texts, that the message may reserve when it is
        refused."""
        return {}
