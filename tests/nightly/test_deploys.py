"""A rolling deploy: workers and callers of two versions on one Redis, while jobs run, wait and come
back. ``tests/nightly/newer.py`` says how the later version differs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nightly.newer import FIELDS, OTHERS, Patches, newer_copy
from tests.stage.fixtures import MakeStage
from tests.stage.stage import Stage
from tests.stage.workers import Worker, kill
from tests.waiting import until

WORK_SECONDS = 1.5
"""of a body"""
LEFT_SECONDS = 0.5
"""of each body of a worker that is killed: its effect is not being written"""
TASKS = ("guarded", "guarded_retry", "any_waiting", "any_unique", "guarded_waiting", "of_tenants")
SENT_TWICE = 3
"""each so many jobs, one is asked for by both versions"""

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(280)]


class Deploy:
    """Two versions on a stage."""

    def __init__(self, stage: Stage, newer: Path) -> None:
        self.stage = stage
        here = stage.environment["PYTHONPATH"]
        self.paths = {"this": here, "later": os.pathsep.join([str(newer), here])}
        self.serving: list[Worker] = []
        self.jobs: list[int] = []

    def use(self, version: str) -> None:
        """Callers and new workers are of this version from now on."""
        self.stage.environment["PYTHONPATH"] = self.paths[version]

    def start(self) -> None:
        self.serving.append(self.stage.worker(concurrency=2))

    def send(self, count: int = 6) -> None:
        """Ask for jobs, in turn by both versions, some by both."""
        for number in range(count):
            self.jobs.append(self.stage.job())
            for version in ("this", "later") if number % SENT_TWICE == 0 else ("this",):
                self.use(version if number % 2 else "later")
                task = TASKS[(len(self.jobs) + number) % len(TASKS)]
                self.stage.call(task, self.jobs[-1], [{"seconds": WORK_SECONDS, "check": True}])

    def replace(self, version: str, *, warm: bool) -> None:
        """End the oldest worker while its bodies work, and start one of this version."""
        old = self.serving.pop(0)
        until(lambda: all(left > LEFT_SECONDS for left in self.left(old)) and [*self.left(old)],
              "bodies that have only begun", 60, every=0.02)  # fmt: skip
        if warm:
            old.send(signal.SIGTERM)
        else:
            for pid in (*old.children, old.pid):
                kill(pid)
        self.use(version)
        self.start()

    def left(self, worker: Worker) -> Iterator[float]:
        """The seconds that each body of a worker has left."""
        for run in self.stage.ledger.runs():
            if run.start.pid in worker.children and run.end == float("inf"):
                yield run.start.at + run.start.planned - time.monotonic()


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "killed"])
@pytest.mark.parametrize("patches", [FIELDS, OTHERS], ids=["a-field-more", "other-forms"])
@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_a_rolling_deploy_and_its_rollback_lose_nothing_and_let_no_two_in(
    make_stage: MakeStage, tmp_path: Path, broker: str, patches: Patches, warm: bool
) -> None:
    # Given two workers of this version, jobs that run and wait, and one that an operator holds
    stage = make_stage(broker, ttl=5, visibility=4)
    deploy = Deploy(stage, newer_copy(tmp_path / "later", patches))
    deploy.use("later")
    held = stage.job()
    stage.locks_command("hold", f"job:{held}", "--for", "5m", "--by", "alice")
    deploy.use("this")
    deploy.start()
    deploy.start()
    stage.call("guarded", held, [{"seconds": 0.1}])

    # And a deploy of a later version, one worker after the other, and its rollback
    for version in ("later", "later", "this", "this"):
        deploy.send()
        deploy.replace(version, warm=warm)

    # I expect the hold to have kept its job from starting, whoever has looked
    assert stage.row(held)[0] == "new"
    deploy.use("this")
    stage.locks_command("clear", f"job:{held}", "--noinput")

    # And runs that died, in a form that this version does not know, to wait for one that does
    if patches is OTHERS and not warm:
        deploy.use("later")
        deploy.start()

    # And each job to be done once, and no lock or message to be left
    jobs = [held, *deploy.jobs]
    until(lambda: all(stage.row(job)[0] == "done" for job in jobs), "all done", 120, every=0.2)
    stage.assert_settled(90)
    for job in jobs:
        stage.assert_done_once(job)
