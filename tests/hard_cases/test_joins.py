"""Calls that join a run, in chains, groups and chords, with real workers that are killed, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import celery
import pytest
from celery.result import AsyncResult

from tests.stage.fixtures import shared_on_both_brokers
from tests.stage.scripted import Boom
from tests.stage.stage import Stage

pytestmark = pytest.mark.slow


class Joined:
    """A run, and six calls that have met it: four links of chains and a group of two."""

    def __init__(self, stage: Stage, *ends: dict[str, Any], then: dict[str, Any]) -> None:
        """``ends``: how the run ends when its gate opens, and what its message does when it is
        delivered again. ``then``: what another call does that runs itself."""
        self.stage, self.gate = stage, stage.gate()
        self.first = stage.begin("joined", {"gate": str(self.gate), **ends[0]}, *ends[1:])
        self.job = self.first.job
        call = stage.sig("joined", self.job, [then])
        self.chains = [(call | stage.sig("collect", "chain")).apply_async() for _ in range(4)]
        both: Any = celery.group([call, call], app=stage.client)
        self.group = both.apply_async()
        self.calls: list[Any] = [*(each.parent for each in self.chains), *self.group]
        self.come()

    def come(self) -> None:
        """Wait until all calls have met the run: they come again after that."""
        seen = {each.id: self.delivered(each) for each in self.calls if not each.ready()}
        for task_id in seen:
            self.stage.deliveries(task_id, seen[task_id] + 2, "prerun")

    def delivered(self, call: AsyncResult[Any]) -> int:
        return len(self.stage.ledger.entries("prerun", task_id=call.id))

    def values(self) -> list[Any]:
        """What the chains, and the parts of the group, end with."""
        return [*(each.get(timeout=60) for each in self.chains), *self.group.get(timeout=60)]

    def runs(self) -> list[str]:
        """The task ids of all runs of the job, which never overlap."""
        assert self.stage.ledger.overlaps(job=self.job) == []
        return [run.start.task_id for run in self.stage.ledger.runs(job=self.job)]


@shared_on_both_brokers
def test_six_calls_that_meet_a_run_and_a_chords_header_have_its_result(shared: Stage) -> None:
    joined = Joined(shared, {}, then={})
    first, other = joined.first, shared.job()
    header = [shared.sig("joined", first.job), shared.sig("joined", other)]
    chord: Any = celery.chord(header, app=shared.client)(shared.sig("collect", "chord"))
    part, beside = chord.parent.results
    shared.deliveries(part.id, 2, "prerun")  # Now it has met the run.
    joined.gate.touch()
    assert joined.values() == [first.result.id] * 6
    assert chord.get(timeout=60) == [first.result.id, beside.id]
    assert joined.runs() == [first.result.id]
    shared.assert_settled()


@shared_on_both_brokers
def test_if_the_run_fails_one_of_the_others_runs_and_the_rest_has_its_result(
    shared: Stage,
) -> None:
    gate: Path = shared.gate()
    joined = Joined(shared, {"then": "raise"}, then={"gate": str(gate)})
    joined.gate.touch()
    second = shared.started(joined.job, 2)
    joined.calls = [each for each in joined.calls if each.id != second.task_id]
    joined.come()
    gate.touch()
    assert joined.values() == [second.task_id] * 6
    with pytest.raises(Boom):
        joined.first.result.get(timeout=60)
    assert joined.runs() == [joined.first.result.id, second.task_id]
    shared.assert_settled()


@shared_on_both_brokers
def test_if_its_child_is_killed_its_message_comes_back_and_all_have_the_result(
    shared: Stage,
) -> None:
    joined = Joined(shared, {}, {}, then={})
    shared.kill(joined.first.start.pid)
    ids = {joined.first.result.get(timeout=60), *joined.values()}
    assert len(ids) == 1
    first, second = joined.runs()
    assert (first, {second}) == (joined.first.result.id, ids)
    shared.assert_settled()
