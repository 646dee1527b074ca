"""When a message comes back that the holder of its lock has refused.

If each came back when it likes, many messages of one lock would either ask too often, or leave the
lock free for seconds. So each has a turn, one step after the last turn that was given. The rule is
the "virtual scheduling" of the generic cell rate algorithm (ITU-T I.371), for a step that is
guessed.
"""

from __future__ import annotations

# The shortest delay of a message that waits for its lock, or for a store that does not answer.
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 15.0
# Between two turns of a lock that is held for less: a few times what a delivery takes.
SHORTEST_STEP_SECONDS = 0.15


def next_turn(
    last: float, held: float, *, ends_in: float | None = None, slots: int = 1,
    longest: float = LONGEST_DELAY_SECONDS, shortest: float = SHORTEST_STEP_SECONDS,
) -> float | None:  # fmt: skip
    """Return in how many seconds the next turn of a lock is; None if it would be later than
    ``longest``: then there is none, and the message asks again.

    A lock that is held is expected to be held for as long again as it has been (Lindy's law), and a
    quarter longer: a message that comes too early is refused once more. A lock that cools says when
    it ends, and how long that took; an operator's hold says when it ends. The turn is not before
    the holder has ended.

    Args, all in seconds:
        last: from now until the last turn that was given; 0 or less if that is past.
        held: how long the lock has been held; of one that cools, how long it will have been; 0 of
            an operator's hold, which tells nothing about those that come after it.
        ends_in: how long the holder goes on to have the lock, if it says so.
        slots: the number of its permits.
        shortest: the shortest step.
    """
    remaining = 1.25 * held if ends_in is None else ends_in
    step = remaining if ends_in is None else held
    step = min(max(step / slots, shortest), longest)
    after = step + (last if 0.0 < last <= LONGEST_DELAY_SECONDS else 0.0)
    turn = max(FIRST_DELAY_SECONDS, min(remaining, longest), after)
    return turn if turn <= longest else None


def delay_until(turn: float | None, waited: float, longest: float, chance: float) -> float:
    """Return the delay in seconds of a message with this turn, which has ``waited`` before.

    It waits for an eighth of that time, at least: it asks ever less often for a lock that is never
    free when it comes. It waits for ``longest`` at most; without a turn for about as long: for
    ``chance`` times that.
    """
    return longest * chance if turn is None else min(max(turn, waited / 8), longest)
