"""Flower shows the tasks, and `TASKLOCK_TASK_URL` leads to its page of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.acceptance.hard_cases.stage import Stage
from tests.acceptance.hard_cases.workers import ROOT
from tests.acceptance.surroundings.recovery import need, recovers
from tests.servers import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

TASK_URL = "http://127.0.0.1:{port}/task/{task_id}"


def test_flower_shows_a_job_that_was_killed_and_its_double(stage: Stage) -> None:
    need("flower")
    port = free_port()
    environment = {
        **os.environ, **stage.environment, "FLOWER_UNAUTHENTICATED_API": "true",
        "HARD_CASES_CELERY": json.dumps(stage.conf),
    }  # fmt: skip
    log = (stage.folder / "flower.log").open("wb")
    flower = subprocess.Popen(
        [
            *(sys.executable, "-m", "celery", "-A", "tests.acceptance.hard_cases.app", "flower"),
            *("--address=127.0.0.1", f"--port={port}"),
        ],
        cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
    )  # fmt: skip
    try:
        until(lambda: page(f"http://127.0.0.1:{port}/api/tasks"), "Flower")
        stage.worker(concurrency=2, options=("-E",))
        result, double = recovers(stage)

        def shown(task_id: str) -> dict[str, Any]:
            said = page(f"http://127.0.0.1:{port}/api/task/info/{task_id}")
            found: dict[str, Any] = json.loads(said) if said else {}
            return found

        def has_ended(task_id: str) -> bool:
            return shown(task_id).get("state") == "SUCCESS"

        for each in (result, double):
            until(partial(has_ended, each.id), "the task in Flower")
            assert each.id in page(TASK_URL.format(port=port, task_id=each.id))
        assert result.id in shown(double.id)["result"]
    finally:
        flower.terminate()
        flower.wait(60)
        log.close()


def page(url: str) -> str:
    """A page's text; "" while there is none."""
    try:
        with urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())
    except (URLError, OSError):
        return ""
