"""When a message that a holder of its lock has refused comes back: each message has a turn.

If each came back when it likes, many messages of one lock would either ask too often, or leave the
lock free for seconds. A note of the store has the last turn that was given, and the next message
gets the turn after it. The note is a hint: without it a message comes back a little too early or
too late. It ends with the turn that it names.
"""

from __future__ import annotations

import time
from contextlib import suppress

from .._values.chance import chance
from .._values.describe import age
from .._values.lock_info import LockInfo
from ..exceptions import StoreUnavailable
from .delivery import Delivery

__all__ = [
    "FIRST_RETRY_DELAY_SECONDS",
    "LONGEST_RETRY_DELAY_SECONDS",
    "next_turn",
    "turn_of",
]

FIRST_RETRY_DELAY_SECONDS = 0.5
"""the shortest delay of a message that waits for its lock, or for a store that does not answer"""
LONGEST_RETRY_DELAY_SECONDS = 15.0
SHORTEST_STEP_SECONDS = 0.15
"""between two turns of a lock that is held for less: a few times what a delivery takes"""
NOTE_ATTEMPTS = 5
"""how often a turn is taken anew, at most, where others take theirs at the same time"""


def next_turn(
    last: float,
    remaining: float,
    step: float,
    waited: float,
    longest: float = LONGEST_RETRY_DELAY_SECONDS,
) -> tuple[float, float | None]:
    """Return when the next message comes back, and the last turn after that. All in seconds.

    ``last``: from now to the last turn that was given, 0 if none is to come. ``remaining``: for
    how long the holder is expected to hold the lock. ``step``: for how long the next one is.
    ``waited``: since the message was first refused.

    A message comes one step after the last of the others, and not before the holder has ended. It
    waits for an eighth of the time that it has waited at least, so that it asks ever less often for
    a lock that is never free when it comes; and for ``longest`` at most. If its turn would be later
    than that, it gets none (the last turn is None), and asks again after ``longest``.

    The rule is the "virtual scheduling" of the generic cell rate algorithm (ITU-T I.371), for a
    step that is guessed instead of agreed.
    """
    turn = max(FIRST_RETRY_DELAY_SECONDS, last + min(step, longest), min(remaining, longest))
    if turn > longest:
        return longest, None
    return min(max(turn, waited / 8), longest), turn


def turn_of(
    delivery: Delivery,
    name: str,
    holder: LockInfo,
    slots: int = 1,
    *,
    whole: bool = False,
    longest: float = LONGEST_RETRY_DELAY_SECONDS,
) -> float:
    """Take the next turn of the lock ``name`` for a message that its ``holder`` has refused.

    ``whole``: the broker delays by whole seconds. ``longest``: the longest delay in seconds.
    Returns the delay in seconds. Raises nothing: if the store does not answer, it is not noted.

    A lock that is held is expected to be held for as long again as it has been (Lindy's law), and a
    quarter longer: a message that comes too early is refused once more. A lock that cools says when
    it ends, and how long that took.
    """
    store, key = delivery.task.locks.store, f"turn {name}"
    now = time.time()
    waited = max(0.0, now - (delivery.refused_since or now))
    held = waited if holder.acquired_at is None else max(0.0, age(holder.acquired_at))
    remaining = step = 1.25 * held
    if holder.cooling and holder.ttl is not None:
        remaining, step = holder.ttl, held + holder.ttl
    step = max(step / slots, 1.0 if whole else SHORTEST_STEP_SECONDS)
    delay, _ = next_turn(0.0, remaining, step, waited, longest)
    with suppress(StoreUnavailable):
        text = store.get_note(key)
        for _ in range(NOTE_ATTEMPTS):
            delay, turn = next_turn(_last(text, now), remaining, step, waited, longest)
            if turn is None:
                return delay * chance.uniform(0.75, 1.25)
            other = store.reserve(key, repr(now + turn), turn, over=text or "")
            if other is None:
                break
            text = str(other)
    return delay


def _last(text: str | None, now: float) -> float:
    """Return from now to the last turn in the text of the note; 0 for a text that cannot be it."""
    try:
        last = float(text or 0.0) - now
    except ValueError:
        return 0.0
    return last if 0.0 < last <= LONGEST_RETRY_DELAY_SECONDS else 0.0
