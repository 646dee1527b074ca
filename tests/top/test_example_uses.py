"""The short examples, with real processes: ``python -m example_project.demo --examples``."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from example_project.uses import USES
from tests.top.test_demo import (
    DEMO,
    PROJECT,
    assert_nothing_left,
    demo_environment,
    started,
    without_redis,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def examples(
    tmp_path: Path, *arguments: str, **environment: str
) -> tuple[int, dict[str, dict[str, Any]], str]:
    """The exit status, what each example came to, and what was said meanwhile."""
    done = subprocess.run(
        [*DEMO, "--json", *arguments],
        cwd=PROJECT,
        env=demo_environment(tmp_path) | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.startswith("["), done.stderr[-4000:]
    shown = dict(zip(USES, json.loads(done.stdout), strict=False))
    assert_nothing_left(tmp_path)
    return done.returncode, shown, done.stderr


@pytest.mark.parametrize("store", ["default", pytest.param("database", marks=pytest.mark.nightly)])
def test_every_example_goes_well(tmp_path: Path, store: str) -> None:
    arguments, environment = [], {}
    if store == "database":
        arguments, environment = ["--store", store], without_redis(tmp_path)
    status, shown, said = examples(tmp_path, *arguments, "--examples", **environment)
    assert [each["problems"] for each in shown.values()] == [[]] * len(USES), said[-4000:]
    assert status == 0
    for each in shown.values():
        assert f"{each['title']}:" in said
        assert each["found"] in said
    assert "computed once" in shown["stampede"]["found"]
    assert "charged once" in shown["payment"]["found"]
    assert "10 sold, 0 parts left" in shown["reentrancy"]["found"]
    assert "0 booked twice" in shown["seats"]["found"]
    assert "2 ran at once" in shown["exports"]["found"]
    assert "1 of 2 schedulers works" in shown["leader"]["found"]


@pytest.mark.nightly
def test_without_locks_every_example_says_what_went_wrong(tmp_path: Path) -> None:
    status, shown, said = examples(tmp_path, "--examples", TASKLOCK_DISABLED_FOR_TESTS="1")
    assert status == 1
    assert [name for name, each in shown.items() if not each["problems"]] == []
    assert said.count("WRONG: ") >= len(USES)


@pytest.mark.nightly
def test_interrupted_examples_leave_nothing_running(tmp_path: Path) -> None:
    # Given processes that have come up, and gunicorn on its way
    with started(tmp_path, [*DEMO, "--examples"], "several locks:") as (process, _):
        process.send_signal(signal.SIGINT)
    assert process.returncode == 130
    assert_nothing_left(tmp_path)
