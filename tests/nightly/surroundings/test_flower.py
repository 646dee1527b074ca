"""Flower: what its API and its pages say of locked tasks, and what it sends and revokes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
from django.test.utils import override_settings

from django_tasklock.conf import task_url
from tests.nightly.surroundings.at_work import TTL_SECONDS, killed_at_work, need, skipped
from tests.servers import free_port
from tests.stage.fixtures import MakeStage
from tests.stage.stage import Stage
from tests.stage.workers import ROOT
from tests.waiting import until

pytestmark = pytest.mark.slow


class Flower:
    """What Flower says at its address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, url: str, sent: Any = None) -> str:
        """The body of the answer; a POST if something is sent."""
        data = None if sent is None else json.dumps(sent).encode()
        try:
            with urlopen(Request(url, data), timeout=60) as answer:
                text: str = answer.read().decode()
                return text
        except HTTPError as error:
            error.close()  # It has the connection.
            raise

    def serves(self) -> bool:
        try:
            return self.ask(f"{self.address}/healthcheck") == "OK"
        except URLError:
            return False

    def api(self, path: str, sent: Any = None) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.ask(f"{self.address}/api/{path}", sent))
        return answer

    def until_state(self, task_id: str, state: str) -> dict[str, Any]:
        """What it says of a task, once it has heard that this is its state."""

        def found() -> dict[str, Any]:
            try:
                info = self.api(f"task/info/{task_id}")
            except HTTPError as error:
                if error.code != 404:  # Otherwise it has not heard of it yet.
                    raise
                return {}
            return info if info.get("state") == state else {}

        return until(found, f"{task_id} is {state}", every=0.1)


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    need("flower")
    return make_stage(ttl=TTL_SECONDS)


@pytest.fixture
def flower(stage: Stage, tmp_path: Path) -> Iterator[Flower]:
    """One beside the stage's workers."""
    port, log = free_port(), tmp_path / "flower.log"
    command = [sys.executable, "-m", "celery", "-A", "tests.stage.app", "flower"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, f"--port={port}", "--address=127.0.0.1"],
            cwd=ROOT, env={**stage.settings(), "FLOWER_UNAUTHENTICATED_API": "true"},
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    flower = Flower(f"http://127.0.0.1:{port}")
    try:
        until(lambda: process.poll() is not None or flower.serves(), "Flower", every=0.1)
        assert process.poll() is None, log.read_text()
        yield flower
    finally:
        process.kill()
        process.wait()


def test_flower_shows_sends_and_revokes_locked_tasks(stage: Stage, flower: Flower) -> None:
    # Given a job that was done after a kill, and whose double was skipped
    stage.worker(concurrency=2, options=("-E",))
    recovered = killed_at_work(stage)

    # I expect Flower to have both as successes
    assert f"done:{recovered.job}" in flower.until_state(recovered.id, "SUCCESS")["result"]
    assert "already_processing" in flower.until_state(recovered.double, "SUCCESS")["result"]
    assert {recovered.id, recovered.double} <= flower.api("tasks").keys()

    # And what it sends to be locked too
    job, gate = stage.job(), stage.gate()
    call = {"args": [job, [{"gate": str(gate)}]]}
    first = flower.api("task/async-apply/guarded", call)["task-id"]
    stage.started(job)
    double = flower.api("task/apply/guarded", {"args": [job]})
    assert double["result"] == skipped(first, job)
    flower.until_state(first, "STARTED")
    with override_settings(TASKLOCK_TASK_URL=flower.address + "/task/{task_id}"):
        link = task_url(first)
    assert link is not None
    assert first in flower.ask(link)

    # And what it revokes to leave no lock: the main process clears that of a child
    flower.api(f"task/revoke/{first}?terminate=true", {})
    flower.until_state(first, "REVOKED")
    until(lambda: stage.row(job)[0] == "failed", "the row says failed")
    until(lambda: not stage.held(), "the lock is free")
    stage.assert_settled()
    assert stage.ledger.completions(job=job) == 0
