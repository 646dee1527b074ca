"""The example project at work: `python -m example_project.demo`, with the locks and without."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

import psutil
import pytest

from tests.processes import lives
from tests.servers import free_port

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(400)]

PROJECT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "example_project.demo"]
SAMPLES = {
    "import:prices": "alive +1,",
    "import:stock": "gone",
    "newsletter": "cooling",
    "payments": "operator anna",
}
"""the locks that the served site has at its start, and what the command says of them"""


def demo(tmp_path: Path, *arguments: str, **environment: str) -> tuple[int, dict[str, Any], str]:
    """Run the demo without the short examples, which have tests of their own; return its exit
    status, its summary and what it said meanwhile."""
    done = subprocess.run(
        [*DEMO, "--json", "--videos-only", *arguments],
        cwd=PROJECT,
        env=demo_environment(tmp_path) | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.startswith("{"), done.stderr[-4000:]
    return done.returncode, json.loads(done.stdout), done.stderr


def test_every_video_is_transcoded_exactly_once(tmp_path: Path) -> None:
    # Given two workers, impatient people and a killer of processes, when the demo has run,
    # then I expect one transcode, one charge and one report of each, and no lock left.
    assert_all_went_well(*demo(tmp_path))
    assert_nothing_left(tmp_path)


def test_without_redis_the_demo_counts_the_same(tmp_path: Path) -> None:
    # Given no Redis to be reached, and none to be started, when the demo runs on the store
    # "database", then I expect what it counts with Redis.
    status, summary, said = demo(tmp_path, "--store", "database", **without_redis(tmp_path))
    assert_all_went_well(status, summary, said)
    assert len(summary["kills"]) == 2
    assert "no Redis" in said
    assert_nothing_left(tmp_path)


def assert_all_went_well(status: int, summary: dict[str, Any], said: str) -> None:
    assert summary["problems"] == [], said[-4000:]
    assert (status, summary["ok"]) == (0, True)
    assert len(summary["videos"]) >= 6
    for video in summary["videos"]:
        assert (video["status"], video["transcodes"]) == ("ready", 1)
        assert video["submissions"] > 2
        assert video["skipped"] == video["submissions"] - 1
        assert video["segments"] > 0
    assert summary["kills"]
    assert all(kill["again_after"] is not None for kill in summary["kills"])
    assert summary["clicks"] > summary["charges"] == summary["orders"] > 0
    assert summary["schedulers"] > summary["reports"] == 1
    assert summary["stuck"] == 0
    assert summary["locks_left"] == []


def test_without_the_locks_the_same_demo_counts_doubles(tmp_path: Path) -> None:
    # Given locks that are always granted, when the very same demo runs, with fewer videos, for each
    # is transcoded several times, then I expect it to see that work was done twice, or its count
    # would prove nothing.
    few = ("--videos", "3", "--submissions", "4")
    status, summary, said = demo(tmp_path, *few, TASKLOCK_DISABLED_FOR_TESTS="1")
    assert (status, summary["ok"]) == (1, False), said[-4000:]
    assert summary["double_transcodes"] > 0
    assert summary["double_charges"] > 0
    assert summary["double_reports"] > 0
    assert summary["problems"]
    assert_nothing_left(tmp_path)


def test_the_site_is_served_with_the_login_it_prints(tmp_path: Path) -> None:
    # Given a served site, when its printed login and command are used, then I expect the same locks
    # in the admin and in another shell, and a page that shows the videos; and nothing left after
    # Ctrl-C.
    command = [sys.executable, "-m", "example_project.serve", "--state", str(tmp_path / "state")]
    with started(tmp_path, command, "Ctrl-C") as (process, said):
        login = re.search(r"(http://127.0.0.1:\d+/)admin/ +(\S+) / (\S+)", said)
        assert login, said
        browser = build_opener(HTTPCookieProcessor())
        page = browser.open(f"{login[1]}admin/login/?next=/admin/django_tasklock/lock/")
        token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', page.read().decode())
        assert token
        form = {"username": login[2], "password": login[3], "csrfmiddlewaretoken": token[1]}
        page_of_locks = browser.open(page.url, urlencode(form).encode()).read().decode()
        command_line = re.search(r"^Its locks +(.+)$", said, re.M)
        assert command_line
        listed = subprocess.check_output(command_line[1], shell=True, cwd=tmp_path, text=True)
        for name, state in SAMPLES.items():
            assert name in page_of_locks
            assert re.search(rf"^{name} .* {state} ", listed, re.M), listed
        assert "clip 1" in browser.open(login[1]).read().decode()
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0
    assert_nothing_left(tmp_path)


@contextlib.contextmanager
def started(tmp_path: Path, command: list[str], awaited: str) -> Iterator[tuple[Any, str]]:
    """A process that has printed what is awaited, and all that it said until then.

    It is to end of what the block does.
    """
    environment = demo_environment(tmp_path) | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            said = ""
            for line in process.stdout or ():
                said += line
                if re.search(awaited, line):
                    break
            assert re.search(awaited, said), said
            yield process, said
            process.communicate(timeout=60)
        finally:
            process.kill()


def assert_nothing_left(tmp_path: Path) -> None:
    """No process of that demo runs, and its directory is gone."""
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(tmp_path) and lives(process):
                left.append(process)
        except psutil.Error:
            continue  # it has just ended, or belongs to another user
    assert left == []
    assert list(tmp_path.glob("tasklock-demo-*")) == []


def without_redis(tmp_path: Path) -> dict[str, str]:
    """Environment in which no Redis is reached, and none found to be started."""
    empty = tmp_path / "empty"
    empty.mkdir()
    nowhere = f"redis://127.0.0.1:{free_port()}"
    return {
        "PATH": str(empty),
        "REDIS_SERVER": str(empty / "redis-server"),
        "REDIS_URL": nowhere,
        "EXAMPLE_REDIS_URL": nowhere,
    }


def demo_environment(tmp_path: Path) -> dict[str, str]:
    """This one's, without what belongs to the tests; TMPDIR marks every process of the demo."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("TASKLOCK_")}
    ours.pop("DJANGO_SETTINGS_MODULE", None)
    return ours | {"TMPDIR": str(tmp_path)}
