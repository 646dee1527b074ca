"""A job of a worker, on stores beside that of one Redis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.stage.fixtures import MakeStage
from tests.store_cases import members, quorum_store

pytestmark = pytest.mark.slow


@pytest.fixture
def of_a_quorum(five_servers: list[Any]) -> dict[str, Any]:
    caches, tasklock = members([server.url for server in five_servers])
    return {"CACHES": caches, "TASKLOCK": {"default": quorum_store(), **tasklock}}


@pytest.fixture
def of_files(tmp_path: Path) -> dict[str, Any]:
    files = "django.core.cache.backends.filebased.FileBasedCache"
    return {"CACHES": {"default": {"BACKEND": files, "LOCATION": str(tmp_path / "cache")}}}


@pytest.mark.parametrize("stores", ["of_a_quorum", "of_files"])
def test_a_job_is_done_once_and_a_double_beside_it_is_skipped(
    request: pytest.FixtureRequest, make_stage: MakeStage, stores: str
) -> None:
    # Given a worker whose locks are there
    stage = make_stage()
    stage.environment["STAGE_STORES"] = json.dumps(request.getfixturevalue(stores))
    stage.worker(concurrency=2)

    # When a job is asked for twice
    job, result, _ = stage.begin("guarded", {"gate": str(stage.gate())})
    double = stage.send("guarded", job)
    assert double.get(timeout=60)["status"] == "skipped"
    stage.open_gates()

    # I expect it to be done once
    assert result.get(timeout=60) == f"done:{job}"
    stage.assert_done_once(job)
