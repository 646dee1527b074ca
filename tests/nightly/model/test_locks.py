"""What one lock promises, in every state that three processes can bring it to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.nightly.model import truth
from tests.nightly.model.processes import LockModel
from tests.nightly.model.search import Violation, explore
from tests.nightly.model.server import Outcome, Reply, Scripts, Server
from tests.nightly.model.state import EARLIER, Doing, Process, State


def visited(*, held: bool = False, model: LockModel | None = None, **budget: Any) -> int:
    """Visit every state of three processes; ``held``: an earlier one has left the lock taken.

    ``budget`` is how often each thing may go wrong. Returns the number of states.
    """
    server = Server(EARLIER, True, fence=1) if held else Server()
    start = State(server, (Process(),) * 3, **budget)
    found = explore(start, (model or LockModel(Scripts())).moves, truth.broken)
    # Nobody must give up, and nothing must go wrong, so that everybody can come to an end.
    without = frozenset({"begin", "give up", "fault", "operator"})
    found.check_end(truth.is_over, without=without, name=truth.NO_END)
    print(f"{len(found.states)} states, {len(found.edges)} moves: {budget}")
    return len(found.states)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("budget", "states"),
    [
        ({"deaths": 1, "expiries": 1, "losses": 1}, 48_000),
        ({"clears": 1, "deaths": 1, "expiries": 1}, 6_500),
        ({"clears": 1, "losses": 1}, 9_700),
        ({"held": True, "clears": 1}, 9_300),
        ({"deaths": 1, "expiries": 1, "losses": 1, "clears": 1}, 190_000),
    ],
)
def test_whatever_goes_wrong_at_any_moment(budget: dict[str, Any], states: int) -> None:
    # Given a death, the end of a lease, a lost command or reply, an operator's clear, at any moment
    # I expect no state in which a promise of `truth` does not hold, or without a way to the end
    assert visited(**budget) > states


# Who lacks which protection, what it does instead, and what that must break.
FAULTS: list[tuple[type, str, Callable[..., Any], str]] = [
    (Scripts, "acquire", lambda it, server, _: Outcome(server, Reply(True)), truth.EXCLUSION),
    (Scripts, "release", lambda it, server, _: it.ended(server), truth.RELEASE_SAYS),
    (Scripts, "extend", lambda it, server, _: Outcome(server, Reply(True)), truth.EXTENDED_OWN),
    (Scripts, "is_live", lambda it, server, token: True, truth.DEAD_HOLDS),
    (Scripts, "in_order", lambda it, queue: queue[::-1], truth.ORDER),
    (Scripts, "is_mine", lambda it, server, token: False, truth.FORGOTTEN),
    (Scripts, "hand_over", lambda it, server: (server, ()), truth.LOST_WAKE_UP),
    (Scripts, "granted", lambda *of: granted(*of, ttl=False), truth.NO_TTL),
    (Scripts, "granted", lambda *of: granted(*of, fence=1), truth.FENCES),
    (Scripts, "told", lambda it, server: (server, ()), truth.NEXT_KNOWS),
    (Scripts, "expire", lambda it, server: server, truth.NO_END),
    (LockModel, "left", lambda it, process, handed: Process(Doing.DONE), truth.FORGOTTEN),
    (LockModel, "is_older", lambda it, message, process: False, truth.EXCLUSION),
    (LockModel, "abandons", lambda it: False, truth.FORGOTTEN),
]  # fmt: skip


def granted(scripts: Scripts, server: Server, token: int, **instead: Any) -> Server:
    return Scripts.granted(scripts, server, token)._replace(**instead)


@pytest.mark.parametrize(("of", "decision", "instead", "broken"), FAULTS)
def test_a_planted_fault_is_found(
    of: type, decision: str, instead: Callable[..., Any], broken: str
) -> None:
    """With ever more that goes wrong, until a property is violated."""
    faulty = type("Faulty", (of,), {decision: instead})
    model = LockModel(faulty()) if of is Scripts else faulty(Scripts())
    budgets: list[dict[str, Any]] = [
        {}, {"held": True, "clears": 1}, {"deaths": 1}, {"losses": 1}, {"expiries": 1},
        {"losses": 1, "expiries": 1}, {"losses": 1, "clears": 1},
    ]  # fmt: skip
    with pytest.raises(Violation) as caught:  # noqa: PT012
        for budget in budgets:
            visited(model=model, **budget)
    assert caught.value.broken == broken
