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
from tests.waiting import until

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


def test_without_redis_the_doctor_finds_the_row_of_a_killed_worker(tmp_path: Path) -> None:
    # Given the site without Redis, and a whole worker that is killed while it transcodes, when
    # another worker has come, then I expect no message to be left, and the video to be finished
    # once after the two commands that the doctor names.
    environment = demo_environment(tmp_path) | without_redis(tmp_path)
    environment |= {
        "DJANGO_SETTINGS_MODULE": "example_project.settings_database",
        "EXAMPLE_STATE": str(tmp_path / "state"),
    }

    def manage(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "example_project.manage", *arguments],
            cwd=PROJECT, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    (tmp_path / "state").mkdir()
    for database in ("default", "locks"):
        manage("migrate", "--database", database)
    said = manage("shell", "--command", UPLOAD_ONE)
    files = tmp_path / "state"
    with worker(tmp_path / "first.log", environment) as first:
        until(lambda: list(files.glob("media/hls/1/*.part/*.ts")), said, within=60)
        os.killpg(first.pid, signal.SIGKILL)
    with worker(tmp_path / "second.log", environment) as second:
        until(lambda: "ready." in (tmp_path / "second.log").read_text(), within=60)
        assert list(files.glob("broker/queues/*.celery.msg")) == []
        said = manage("locks", "doctor")
        assert "locks doctor --requeue" in said
        if "nobody holds its lock" not in said:  # On a slow machine its lease has ended by now.
            assert "locks clear -- video:1" in said
            manage("locks", "clear", "--noinput", "--", "video:1")
        assert "sent again" in manage("locks", "doctor", "--requeue")
        until(lambda: list(files.glob("media/hls/1/*/index.m3u8")), within=60)
        second.terminate()
        second.wait(60)
    assert len((files / "ledgers/transcoded.jsonl").read_text().splitlines()) == 1
    assert "Nothing is wrong" in manage("locks", "doctor")


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    # Given a demo whose workers are in the middle of their work, when it is interrupted, then I
    # expect every process it started, and its directory, to be gone when it has ended.
    a_live_lock = re.compile(r"video:\d+ .* transcode ")
    with subprocess.Popen(
        DEMO, cwd=PROJECT, env=demo_environment(tmp_path), stdout=subprocess.PIPE, text=True
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
    environment = demo_environment(tmp_path) | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        DEMO, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "this worker never starts" in done.stderr
    assert_nothing_left(tmp_path)


def test_the_site_is_served_with_the_login_it_prints(tmp_path: Path) -> None:
    # Given a served site, when its printed login and command are used, then I expect the same locks
    # in the admin and in another shell, and a page that shows the videos; and nothing left after
    # Ctrl-C.
    command = [sys.executable, "-m", "example_project.serve", "--state", str(tmp_path / "state")]
    environment = demo_environment(tmp_path) | {"PYTHONUNBUFFERED": "1"}
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
            page_of_locks = locks.read().decode()
            command_line = re.search(r"^Its locks +(.+)$", said, re.M)
            assert command_line
            listed = subprocess.check_output(command_line[1], shell=True, cwd=tmp_path, text=True)
            for name, state in SAMPLES.items():
                assert name in page_of_locks
                assert re.search(rf"^{name} .* {state} ", listed, re.M), listed
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
            until(lambda: child.cmdline() == sleeper)  # no longer the launcher
        finally:
            parent.kill()
    try:
        until(lambda: not lives(child))
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


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


UPLOAD_ONE = """
from pathlib import Path
from django.conf import settings
from django.core.files import File
from example_project.demo.clips import make_clips
from example_project.videos.models import Video
from example_project.videos.tasks import transcode

clip = make_clips(8, Path(settings.STATE_DIR, "clips"))[-1]
with clip.path.open("rb") as file:
    transcode.delay(Video.objects.create(title=clip.title, file=File(file, clip.path.name)).pk)
"""


@contextlib.contextmanager
def worker(log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of the example site with one pool child, in a process group of its own."""
    command = [
        *(sys.executable, "-m", "celery", "-A", "example_project", "worker"),
        *("--concurrency", "1", "--loglevel", "INFO"),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=PROJECT, env=environment, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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
