"""Each way to declare a task, or to send its call: it waits, is killed, or is a duplicate.

The whole table is played at once, on one worker; each test looks at one of its cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from celery.result import AsyncResult

from tests.stage.declared import WAYS, Way, options_of
from tests.stage.fixtures import stage_for_a_file
from tests.stage.ledger import Entry
from tests.stage.scripted import Step
from tests.stage.stage import Stage
from tests.stage.workers import AS_ROOT

pytestmark = pytest.mark.slow
TWICE = "is a duplicate"
SITUATIONS = ("waits", "is killed", TWICE)


class Cell(NamedTuple):
    """A job that was called one way, in one situation."""

    way: Way
    job: int
    results: list[AsyncResult[Any]]
    script: list[Step]


class Table:
    """All cells, played on a stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        accepts = {"accept_content": ["json", "pickle"]}
        # Before there is a worker, so that the first of two calls waits when the second is made.
        self.cells = {(name, TWICE): self.call(name, TWICE) for name in WAYS}
        stage.worker(concurrency=4, conf=accepts, environment=AS_ROOT)
        for how in ("waits", "is killed"):
            self.cells |= {(name, how): self.call(name, how) for name in WAYS}
        waits = [cell for (_, how), cell in self.cells.items() if how == "waits"]
        for cell in waits:
            # The first has perhaps not asked for its lock yet; the second comes after a refusal.
            stage.deliveries(cell.results[0].id, 2, "prerun")
        stage.redis.delete(*(stage.lock_key(f"job:{cell.job}") for cell in waits))
        self.left = ""
        try:
            stage.assert_settled()
        except AssertionError as error:
            self.left = str(error)

    def call(self, name: str, how: str) -> Cell:
        """Call the job of a cell; a duplicate right after the first, which waits in the queue."""
        stage, way = self.stage, WAYS[name]
        job, task = stage.job(), f"declared: {name}"
        script, times = list(way.script), 1
        options = options_of(way, stage.client, f"{name} {how}")
        if how == "waits":
            stage.redis.set(stage.lock_key(f"job:{job}"), "of somebody else", ex=60)
        elif how == "is killed":
            script.insert(0, {"then": "kill"})
        else:
            times = 2
        results = [stage.call(task, job, script, **options) for _ in range(times)]
        return Cell(way, job, results, script)

    def events(self, cell: Cell, event: str) -> list[Entry]:
        return self.stage.ledger.entries(event, job=cell.job)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """The table, once it is quiet."""
    with stage_for_a_file(tmp_path_factory.mktemp("stage")) as stage:
        yield Table(stage)
        print(stage.report())


@pytest.mark.parametrize("how", SITUATIONS)
@pytest.mark.parametrize("name", WAYS)
def test_its_body_runs_once_with_every_option_in_force(table: Table, name: str, how: str) -> None:
    # Given a job that was called one way: it finds the lock held, or its first run is killed, or
    # it is called twice
    cell, ledger = table.cells[name, how], table.stage.ledger
    way, gone = cell.way, how == "is killed" and not cell.way.task.get("acks_late", True)
    unique = how != TWICE or way.unique
    assert len({result.id for result in cell.results}) == (1 if unique else 2)

    # I expect its body to run to its end as often as it is to, and alone; not if it is killed when
    # its message is gone
    assert len(table.events(cell, "start")) == (1 if gone else len(cell.script))
    assert ledger.completions(job=cell.job) == (0 if gone else way.ends)
    assert ledger.overlaps(job=cell.job) == []
    assert table.stage.row(cell.job)[0] == ("failed" if gone else "done")

    # And each run to see the options of the task and of the call
    for seen in table.events(cell, "seen"):
        assert {each: seen.data[each] for each in way.seen} == way.seen
    if how == "waits":
        assert len(ledger.entries("prerun", task_id=cell.results[0].id)) > 1
        assert f"{cell.results[0].id}] could not be requeued" not in table.stage.workers[0].text()
    if way.call.get("link"):
        called = ledger.entries("collected", label=f"{name} {how}")
        assert f"done:{cell.job}" in [entry.value for entry in called]


def test_nothing_is_left_of_them(table: Table) -> None:
    """No message, no lock, and no reservation: the next call of each is sent."""
    assert not table.left
    for (name, _), cell in table.cells.items():
        again = table.stage.call(f"declared: {name}", cell.job, countdown=600)
        assert again.id not in [result.id for result in cell.results]
