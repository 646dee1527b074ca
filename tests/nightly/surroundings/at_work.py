"""What each of these tests does with the lock, whatever tool is beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests import needs
from tests.stage.ledger import Entry
from tests.stage.stage import Stage

TTL_SECONDS = 600.0
"""of every lease here: what happens within a minute did not wait for the end of a lease"""
MODULES = "tests.nightly.surroundings."


class Recovered(NamedTuple):
    """A job whose first run was killed."""

    job: int
    id: str
    double: str
    """the id of the call that was skipped"""


def need(*modules: str) -> None:
    """Skip, or fail in CI, where a package is missing; tox does not install them."""
    for module in modules:
        if "TOX_ENV_NAME" in os.environ and not needs.has(module):
            pytest.skip(f"{module} is not of tox's environments")
        needs.package(module)


def skipped(holder: str, job: int) -> dict[str, Any]:
    """The marker of a call that was skipped for this holder."""
    return {
        "status": "skipped",
        "reason": "already_processing",
        "lock": f"job:{job}",
        "holder": holder,
    }


def killed_at_work(
    stage: Stage,
    kill: Callable[[Entry], None] | None = None,
    *,
    wait: Callable[[str], Any] | None = None,
    **options: Any,
) -> Recovered:
    """One job: a double is skipped, the run is killed, and the job is done once all the same.

    Two must be able to run at a time. ``kill`` ends the process of a start that the ledger has; by
    default that very process. ``wait`` returns the result of a task id. ``options`` are those of
    the first message.
    """

    def result(task_id: str) -> Any:
        return stage.client.AsyncResult(task_id).get(timeout=60)

    wait = wait or result
    job, gate = stage.job(), stage.gate()
    first = stage.send("guarded", job, [{"gate": str(gate)}, {"seconds": 0.05}], **options)
    start = stage.started(job)
    double = stage.send("guarded", job)
    assert wait(double.id) == skipped(first.id, job)
    if kill is None:
        stage.kill(start.pid)
    else:
        kill(start)
    again = stage.started(job, 2)
    assert (again.task_id, again.retries) == (first.id, 0)
    assert again.fence > start.fence
    assert wait(first.id) == f"done:{job}"
    stage.assert_settled()
    stage.assert_done_once(job)
    assert len(stage.ledger.runs(job=job)) == 2
    return Recovered(job, first.id, double.id)
