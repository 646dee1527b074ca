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


def test_every_example_goes_well(tmp_path: Path) -> None:
    status, shown, said = examples(tmp_path, "--examples")
    assert_all_went_well(status, shown, said)


@pytest.mark.nightly
def test_every_example_goes_well_without_redis(tmp_path: Path) -> None:
    arguments = ("--store", "database", "--examples")
    status, shown, said = examples(tmp_path, *arguments, **without_redis(tmp_path))
    assert_all_went_well(status, shown, said)


def assert_all_went_well(status: int, shown: dict[str, dict[str, Any]], said: str) -> None:
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
def test_one_example_alone_and_one_that_is_not_there(tmp_path: Path) -> None:
    status, shown, _ = examples(tmp_path, "--examples", "stampede")
    assert (status, list(shown)) == (0, ["stampede"])
    done = subprocess.run(
        [*DEMO, "--examples", "stampeed"],
        cwd=PROJECT, env=demo_environment(tmp_path), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "stampede" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
@pytest.mark.nightly
def test_interrupted_examples_leave_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [*DEMO, "--examples"], cwd=PROJECT,
        env=demo_environment(tmp_path) | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            # Given processes that have come up, and gunicorn on its way
            said = ""
            for line in process.stdout:
                said += line
                if "several locks:" in line:
                    break
            assert "several locks:" in said
            process.send_signal(number)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert_nothing_left(tmp_path)


@pytest.mark.nightly
def test_processes_that_do_not_come_up_are_reported(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if sys.orig_argv[-1] == 'example_project.uses.crew':\n"
        "    sys.exit('this process never starts')\n"
    )
    done = subprocess.run(
        [*DEMO, "--examples"], cwd=PROJECT,
        env=demo_environment(tmp_path) | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "this process never starts" in done.stderr
    assert "of an example ended with" in done.stderr
    assert_nothing_left(tmp_path)
