"""What each of these tests does with the locks, whatever tool is beside them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests import needs
from tests.stage.ledger import Entry
from tests.stage.stage import Stage
from tests.waiting import until

TTL_SECONDS = 600.0
"""of every lease here: what happens within a minute did not wait for the end of a lease"""
TOOLS = "tests.nightly.surroundings.with_tools"
Ended = tuple[str, Any]
"""the state of a call, and its result or the name of its error"""


class Recovered(NamedTuple):
    """A job whose first run was killed."""

    job: int
    id: str
    double: str
    """the id of the call that was skipped"""


class Calls(NamedTuple):
    """The ids of calls, by what happened to them."""

    recovered: str
    double: str
    retried: str
    requeued: str
    waited: str
    refused: str
    failed: str


def need(*modules: str) -> None:
    """Skip, or fail in CI, where a package is missing; tox does not install them."""
    for module in modules:
        if "TOX_ENV_NAME" in os.environ and not needs.has(module):
            pytest.skip(f"{module} is not of tox's environments")
        needs.package(module)


def install(stage: Stage, app: str) -> None:
    """Add an app to the workers' INSTALLED_APPS, and make its tables."""
    apps = stage.environment.get("STAGE_APPS", "").split()
    stage.environment["STAGE_APPS"] = " ".join([*apps, app])
    stage.script(f"""
import django; django.setup()
from django.core.management import call_command
call_command("migrate", {app!r}, verbosity=0)
""")


def rows(stage: Stage, query: str, *values: Any) -> list[dict[str, Any]]:
    """What a query finds in the database of the stage."""
    with stage.rows() as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query, values)]


def skipped(holder: str, job: int) -> dict[str, Any]:
    """The marker of a call that was skipped for this holder."""
    return {
        "status": "skipped", "reason": "already_processing", "lock": f"job:{job}", "holder": holder,
    }  # fmt: skip


def ended(stage: Stage, task_id: str) -> Ended:
    """How a call ends, by the result backend."""
    result = stage.client.AsyncResult(task_id)
    value = result.get(timeout=60, propagate=False)
    return result.state, type(value).__name__ if isinstance(value, Exception) else value


def killed_at_work(
    stage: Stage,
    kill: Callable[[Entry], None] | None = None,
    *,
    ended: Callable[[Stage, str], Ended] = ended,
    **options: Any,
) -> Recovered:
    """One job: a double is skipped, the run is killed, and the job is done once all the same.

    Two must be able to run at a time. ``kill`` ends the process of a start that the ledger has; by
    default that very process. ``options`` are those of the first message.
    """
    job, gate = stage.job(), stage.gate()
    first = stage.send("guarded", job, [{"gate": str(gate)}, {"seconds": 0.05}], **options)
    start = stage.started(job)
    double = stage.send("guarded", job)
    assert ended(stage, double.id) == ("SUCCESS", skipped(first.id, job))
    if kill is None:
        stage.kill(start.pid)
    else:
        kill(start)
    again = stage.started(job, 2)
    assert (again.task_id, again.retries) == (first.id, 0)
    assert again.fence > start.fence
    assert ended(stage, first.id) == ("SUCCESS", f"done:{job}")
    stage.assert_settled()
    stage.assert_done_once(job)
    assert len(stage.ledger.runs(job=job)) == 2
    return Recovered(job, first.id, double.id)


def every_end(
    stage: Stage,
    *,
    ended: Callable[[Stage, str], Ended] = ended,
    send: Callable[..., str] | None = None,
    while_requeued: Callable[[str], None] = lambda task_id: None,
) -> Calls:
    """Calls that end in each way, on a worker of two processes.

    ``send(name, job, script)`` sends one and returns its id. ``while_requeued`` gets the id of the
    one that was sent back to its queue, while another one holds its lock.
    """

    def sent(*call: Any) -> str:
        return send(*call) if send else stage.send(*call).id

    recovered = killed_at_work(stage, ended=ended)
    # The task's own retry
    job = stage.job()
    retried = sent("guarded", job, [{"then": "retry"}, {}])
    assert ended(stage, retried) == ("SUCCESS", f"done:{job}")
    assert [entry.retries for entry in stage.ledger.entries("start", job=job)] == [0, 1]

    # While one holds the lock, another is requeued, one is refused, and one waits
    job, gate = stage.job(), stage.gate()
    holder = sent("guarded", job, [{"gate": str(gate)}])
    stage.started(job)
    requeued = sent("guarded_retry", job)
    until(lambda: len(stage.ledger.entries("prerun", task_id=requeued)) >= 2, "requeued")
    while_requeued(requeued)
    refused = sent("raising", job)
    assert ended(stage, refused) == ("FAILURE", "LockNotAcquired")
    waited = sent("guarded_waiting", job)
    until(lambda: stage.redis.keys(f"*:job:{job} queue"), "the wait queue")
    gate.touch()
    assert ended(stage, holder) == ("SUCCESS", f"done:{job}")
    for task_id in (requeued, waited):
        state, marker = ended(stage, task_id)
        assert (state, marker["reason"]) == ("SUCCESS", "invalid_state")
    stage.assert_done_once(job)

    # A body that raises
    job = stage.job()
    failed = sent("guarded", job, [{"then": "raise"}])
    assert ended(stage, failed) == ("FAILURE", "Boom")
    assert stage.row(job)[0] == "failed"
    stage.assert_settled()
    return Calls(recovered.id, recovered.double, retried, requeued, waited, refused, failed)
