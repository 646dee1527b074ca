"""The example project at work: `python -m example_project.demo`, with the locks and without."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PROJECT = Path(__file__).parents[1]
DEMO = [sys.executable, "-m", "example_project.demo"]


def demo(tmp_path: Path, **environment: str) -> tuple[int, dict[str, Any], str]:
    """Run the whole demo; return its exit status, its summary and what it said meanwhile."""
    done = subprocess.run(
        [*DEMO, "--json"],
        cwd=PROJECT,
        env=_environment(tmp_path) | environment,
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
    status, summary, said = demo(tmp_path)
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
    assert_nothing_left(tmp_path)


def test_without_the_locks_the_same_demo_counts_doubles(tmp_path: Path) -> None:
    # Given locks that are always granted, when the very same demo runs, then I expect it to see
    # that work was done twice, or its count would prove nothing.
    status, summary, said = demo(tmp_path, TASKLOCK_DISABLED_FOR_TESTS="1")
    assert (status, summary["ok"]) == (1, False), said[-4000:]
    assert summary["double_transcodes"] > 0
    assert summary["double_charges"] > 0
    assert summary["double_reports"] > 0
    assert summary["problems"]
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    # Given a demo whose workers are in the middle of their work, when it is interrupted, then I
    # expect every process it started, and its directory, to be gone when it has ended.
    a_live_lock = re.compile(r"video:\d+ .* transcode ")
    with subprocess.Popen(
        DEMO, cwd=PROJECT, env=_environment(tmp_path), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            said = ""
            for line in process.stdout:
                said += line
                if a_live_lock.search(line):
                    break
            assert a_live_lock.search(said), said
            process.send_signal(number)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert_nothing_left(tmp_path)


def test_workers_that_do_not_come_up_are_reported(tmp_path: Path) -> None:
    # Given a setting that no worker can start with, when the demo runs, then I expect exit
    # status 1 and the last lines of the worker's log.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'worker' in sys.argv:\n    sys.exit('this worker never starts')\n"
    )
    environment = _environment(tmp_path) | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        DEMO, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "this worker never starts" in done.stderr
    assert_nothing_left(tmp_path)


def test_the_site_is_served_with_the_login_it_prints(tmp_path: Path) -> None:
    # Given a served site, when its printed login is used, then I expect the live locks in the
    # admin and a page that shows the videos; and nothing left after Ctrl-C.
    command = [sys.executable, "-m", "example_project.serve", "--state", str(tmp_path / "state")]
    environment = _environment(tmp_path) | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            said = ""
            for line in process.stdout:
                said += line
                if "Ctrl-C" in line:
                    break
            login = re.search(r"(http://127.0.0.1:\d+/)admin/ +(\S+) / (\S+)", said)
            assert login, said
            browser = build_opener(HTTPCookieProcessor())
            page = browser.open(f"{login[1]}admin/login/?next=/admin/django_tasklock/lock/")
            token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', page.read().decode())
            assert token
            form = {"username": login[2], "password": login[3], "csrfmiddlewaretoken": token[1]}
            locks = browser.open(page.url, urlencode(form).encode())
            assert locks.url.endswith("/admin/django_tasklock/lock/")
            assert "Live locks" in locks.read().decode()
            assert "clip 1" in browser.open(login[1]).read().decode()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    assert_nothing_left(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_a_command_dies_with_its_parent() -> None:
    # Given a parent that runs a command in this way, when the parent is killed by SIGKILL, then I
    # expect the command to be gone at once.
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    parent_code = (
        "import subprocess, sys\n"
        "from example_project.die_with_parent import die_with_parent\n"
        "child = subprocess.Popen(die_with_parent(sys.argv[1:]))\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent_code, *sleeper],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        try:
            child = psutil.Process(int(parent.stdout.readline()))
            _wait_until(lambda: child.cmdline() == sleeper)  # no longer the launcher
        finally:
            parent.kill()
    try:
        _wait_until(lambda: not _runs(child))
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def assert_nothing_left(tmp_path: Path) -> None:
    """No process of that demo runs, and its directory is gone."""
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(tmp_path) and _runs(process):
                left.append(process)
        except psutil.Error:
            continue  # it has just ended, or belongs to another user
    assert left == []
    assert list(tmp_path.glob("tasklock-demo-*")) == []


def _environment(tmp_path: Path) -> dict[str, str]:
    """This one's, without what belongs to the tests; TMPDIR marks every process of the demo."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("TASKLOCK_")}
    ours.pop("DJANGO_SETTINGS_MODULE", None)
    return ours | {"TMPDIR": str(tmp_path)}


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
