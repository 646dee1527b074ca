"""What one lock promises, in every state that three processes can bring it to."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model import faults, truth
from tests.model.locks import LockModel
from tests.model.messages import Server
from tests.model.search import Explored, Violation, explore
from tests.model.server import Scripts
from tests.model.state import EARLIER, Process, State


def visited(
    processes: int = 3,
    *,
    held: bool = False,
    model: LockModel | None = None,
    **budget: Any,
) -> Explored[State]:
    """Every state of so many processes. ``held``: an earlier process has left the lock taken."""
    server = Server(EARLIER, True, fence=1, own_fence=True) if held else Server()
    start = State(server, (Process(),) * processes, **budget)
    found = explore(start, (model or LockModel(Scripts())).canonical_moves, truth.broken)
    # Nobody must give up, and nothing must go wrong, so that everybody can come to an end.
    without = frozenset({"begin", "give up", "fault", "operator"})
    found.check_end(truth.is_over, without=without, name=truth.NO_END)
    print(f"{len(found.states)} states, {found.moves} moves: {processes} processes, {budget}")
    return found


class TestEveryState:
    def test_a_death_an_expiry_and_a_lost_reply_anywhere(self) -> None:
        found = visited(deaths=1, expiries=1, losses=1)
        assert len(found.states) > 30_000

    def test_a_clear_a_death_and_an_expiry_anywhere(self) -> None:
        visited(clears=1, deaths=1, expiries=1)

    def test_a_clear_and_a_lost_reply_anywhere(self) -> None:
        visited(clears=1, losses=1)

    def test_after_a_process_that_died_with_the_lock(self) -> None:
        visited(held=True, clears=1)

    def test_a_command_that_runs_after_its_own_repetition(self) -> None:
        """It may leave a lock until its ttl is over, and nothing worse."""
        visited(2, losses=1, late=True, deaths=1, expiries=1, clears=1)

    @pytest.mark.slow
    @pytest.mark.timeout(900)
    @pytest.mark.parametrize("more", [{"clears": 1}, {"late": True}], ids=str)
    def test_all_of_it_at_once(self, more: dict[str, Any]) -> None:
        found = visited(deaths=1, expiries=1, losses=1, **more)
        assert len(found.states) > 140_000


class TestPlantedFaults:
    """The search finds what it is there to find."""

    @pytest.mark.parametrize(
        ("scripts", "broken"),
        [
            (faults.ReleasesWithoutCompare, {truth.EXCLUSION, truth.RELEASE_SAYS}),
            (faults.ExtendsWithoutCompare, {truth.EXTENDED_OWN}),
            (faults.HandsOverUnseen, {truth.DEAD_HOLDS}),
            (faults.ServesLastFirst, {truth.ORDER}),
            (faults.WaitsAtTheEndAgain, {truth.ORDER}),
            (faults.ForgetsItsOwnToken, {truth.FORGOTTEN}),
            (faults.ReleasesInSilence, {truth.LOST_WAKE_UP}),
            (faults.HandsOverWithoutTtl, {truth.NO_TTL}),
            (faults.GrantsWithTheSameFence, {truth.FENCES}),
            (faults.TellsNoSuccessor, {truth.NEXT_KNOWS}),
            (faults.LeasesNeverEnd, {truth.NO_END}),
        ],
    )
    def test_in_a_script(self, scripts: type[Scripts], broken: set[str]) -> None:
        violation = self.found(LockModel(scripts()))
        assert violation.broken in broken
        assert violation.trace or violation.broken == truth.NO_END, (
            "it was there from the beginning"
        )

    @pytest.mark.parametrize(
        ("model", "broken"),
        [
            (faults.LeavesWithoutTheLock, {truth.FORGOTTEN}),
            (faults.TrustsOldMessages, {truth.FORGOTTEN, truth.NEXT_KNOWS}),
        ],
    )
    def test_in_a_client(self, model: type[LockModel], broken: set[str]) -> None:
        assert self.found(model(Scripts())).broken in broken

    def test_is_told_in_words(self) -> None:
        told = str(self.found(LockModel(faults.ServesLastFirst())))
        assert told.startswith(truth.ORDER)
        assert "1. process A" in told

    @staticmethod
    def found(model: LockModel) -> Violation:
        """The first violation, with ever more that goes wrong."""
        budgets: list[dict[str, Any]] = [
            {}, {"held": True, "clears": 1}, {"deaths": 1}, {"losses": 1}, {"expiries": 1},
            {"losses": 1, "expiries": 1},
        ]  # fmt: skip
        for budget in budgets:
            try:
                visited(model=model, **budget)
            except Violation as violation:
                print(violation)
                return violation
        pytest.fail("the planted fault was not found")
