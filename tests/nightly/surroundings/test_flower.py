"""Flower: what its API and its pages say of locked tasks, and what it sends and revokes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


def ask(url: str, sent: Any = None) -> str:
    """The body of the answer; a POST if something is sent."""
    data = None if sent is None else json.dumps(sent).encode()
    try:
        with urlopen(Request(url, data), timeout=60) as answer:
            text: str = answer.read().decode()
            return text
    except HTTPError as error:
        error.close()  # It has the connection.
        raise


@contextmanager
def flower(stage: Stage, log: Path) -> Iterator[str]:
    """A Flower beside the stage's workers; yields its address."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "tests.stage.app"),
                *("flower", f"--port={port}", "--address=127.0.0.1"),
            ],
            cwd=ROOT,
            env={**stage.settings(), "FLOWER_UNAUTHENTICATED_API": "true"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def serves() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return ask(f"{address}/healthcheck") == "OK"
        except URLError:
            return False

    try:
        until(serves, "Flower", every=0.1)
        yield address
    finally:
        process.terminate()
        process.wait(20)


def test_flower_shows_sends_and_revokes_locked_tasks(make_stage: MakeStage, tmp_path: Path) -> None:
    need("flower")
    stage = make_stage(ttl=TTL_SECONDS)
    with flower(stage, tmp_path / "flower.log") as address:
        stage.worker(concurrency=2, options=("-E",))

        def shown(task_id: str) -> dict[str, Any]:
            """What the API says of a task; nothing as long as it has not heard of it."""
            try:
                info: dict[str, Any] = json.loads(ask(f"{address}/api/task/info/{task_id}"))
            except HTTPError as error:
                if error.code != 404:
                    raise
                return {}
            return info

        def until_state(task_id: str, state: str) -> dict[str, Any]:
            def found() -> dict[str, Any] | None:
                info = shown(task_id)
                return info if info.get("state") == state else None

            info = until(found, f"{task_id} is {state}", every=0.1)
            assert info is not None
            return info

        def post(path: str, sent: Any) -> dict[str, Any]:
            answer: dict[str, Any] = json.loads(ask(f"{address}/api/{path}", sent))
            return answer

        recovered = killed_at_work(stage)
        assert f"done:{recovered.job}" in until_state(recovered.id, "SUCCESS")["result"]
        assert "already_processing" in until_state(recovered.double, "SUCCESS")["result"]
        assert {recovered.id, recovered.double} <= json.loads(ask(f"{address}/api/tasks")).keys()

        # What Flower sends is locked too, and what it revokes leaves no lock.
        job, gate = stage.job(), stage.gate()
        call = {"args": [job, [{"gate": str(gate)}]]}
        first = post("task/async-apply/guarded", call)["task-id"]
        stage.started(job)
        double = post("task/apply/guarded", {"args": [job]})
        assert double["result"] == skipped(first, job)
        until_state(first, "STARTED")
        with override_settings(TASKLOCK_TASK_URL=address + "/task/{task_id}"):
            link = task_url(first)
        assert link is not None
        assert first in ask(link)
        post(f"task/revoke/{first}?terminate=true", {})
        until_state(first, "REVOKED")
        # By the main process, after the child has given up the lock and the row.
        until(lambda: stage.row(job)[0] == "failed", "the row says failed")
        until(lambda: not stage.held(), "the lock is free")
        stage.assert_settled()
        assert stage.ledger.completions(job=job) == 0
        assert stage.row(job)[0] == "failed"
