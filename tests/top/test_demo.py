"""The example project at work: `python -m example_project.demo`, with the locks and without."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

import psutil
import pytest

from example_project.uses import USES
from tests.servers import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PROJECT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "example_project.demo"]
STORES = ["default", pytest.param("database", marks=pytest.mark.nightly)]


def environment_of(tmp_path: Path) -> dict[str, str]:
    """This one's, without what belongs to the tests; TMPDIR marks every process of the demo."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("TASKLOCK_")}
    ours.pop("DJANGO_SETTINGS_MODULE", None)
    return ours | {"TMPDIR": str(tmp_path)}


def without_redis(tmp_path: Path) -> dict[str, str]:
    """An environment in which no Redis is reached, and none found to be started."""
    empty, nowhere = tmp_path / "empty", f"redis://127.0.0.1:{free_port()}"
    empty.mkdir()
    urls = {"REDIS_URL": nowhere, "EXAMPLE_REDIS_URL": nowhere}
    return urls | {"PATH": str(empty), "REDIS_SERVER": str(empty / "redis-server")}


def assert_nothing_left(tmp_path: Path) -> None:
    """No process of that demo runs, and its directory is gone."""
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has just ended, or belongs to another user
            its_own = process.environ().get("TMPDIR") == str(tmp_path)
            if its_own and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
    assert left == []
    assert list(tmp_path.glob("tasklock-demo-*")) == []


def demo(tmp_path: Path, *arguments: str, store: str = "default", **more: str) -> Any:
    """Run the demo to its end; its exit status, what it counted, and what it said meanwhile."""
    if store == "database":
        arguments, more = (*arguments, "--store", store), more | without_redis(tmp_path)
    done = subprocess.run(
        [*DEMO, "--json", *arguments], cwd=PROJECT, env=environment_of(tmp_path) | more,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout.startswith(("{", "[")), done.stderr[-4000:]
    assert_nothing_left(tmp_path)
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("store", ["default", "database"])
def test_every_video_is_transcoded_exactly_once(tmp_path: Path, store: str) -> None:
    """With two workers, impatient people and a killer of processes."""
    status, summary, said = demo(tmp_path, "--videos-only", store=store)
    assert summary["problems"] == [], said[-4000:]
    assert (status, summary["ok"], summary["locks_left"]) == (0, True, [])
    assert len(summary["videos"]) >= 6
    for video in summary["videos"]:
        assert (video["status"], video["transcodes"]) == ("ready", 1)
        assert video["skipped"] == video["submissions"] - 1 > 1
    assert summary["kills"]
    assert summary["schedulers"] > summary["reports"] == 1


@pytest.mark.parametrize("store", STORES)
def test_every_short_example_goes_well(tmp_path: Path, store: str) -> None:
    # Given the example project with its locks; I expect no example to find that work is done twice
    status, shown, said = demo(tmp_path, "--examples", store=store)
    assert [each["problems"] for each in shown] == [[]] * len(USES), said[-4000:]
    assert status == 0
    assert all(each["found"] in said for each in shown)


@pytest.mark.nightly
def test_without_the_locks_they_see_that_work_is_done_twice(tmp_path: Path) -> None:
    """Or what they count would prove nothing."""
    no_locks, few = {"TASKLOCK_DISABLED_FOR_TESTS": "1"}, ("--videos=3", "--submissions=4")
    status, summary, said = demo(tmp_path, "--videos-only", *few, **no_locks)
    assert (status, bool(summary["problems"])) == (1, True), said[-4000:]
    for what in ("transcodes", "reports"):
        assert summary[f"double_{what}"] > 0
    status, shown, said = demo(tmp_path, "--examples", **no_locks)
    assert (status, len(shown)) == (1, len(USES)), said[-4000:]
    assert all(each["problems"] for each in shown)


@pytest.mark.nightly
def test_the_site_is_served_with_the_login_it_prints_and_leaves_nothing(tmp_path: Path) -> None:
    """Its locks are seen in the admin and in another shell."""
    command = [sys.executable, "-m", "example_project.serve", "--state", str(tmp_path / "state")]
    environment = environment_of(tmp_path) | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        said = ""
        while "Ctrl-C" not in said:
            line = process.stdout.readline() if process.stdout else ""
            assert line, said
            said += line
        ((url, *login),) = re.findall(r"(http://127.0.0.1:\d+/)admin/ +(\S+) / (\S+)", said)
        browser = build_opener(HTTPCookieProcessor())
        page = browser.open(f"{url}admin/login/?next=/admin/django_tasklock/lock/")
        (token,) = re.findall(r'csrfmiddlewaretoken" value="(\w+)"', page.read().decode())
        form = {"username": login[0], "password": login[1], "csrfmiddlewaretoken": token}
        page_of_locks = browser.open(page.url, urlencode(form).encode()).read().decode()
        (shell,) = re.findall(r"^Its locks +(.+)$", said, re.MULTILINE)
        listed = subprocess.check_output(shell, shell=True, cwd=tmp_path, text=True)
        for name in ("import:prices", "import:stock", "newsletter", "payments"):
            assert name in page_of_locks
            assert name in listed
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert_nothing_left(tmp_path)
