"""What is supported is what is tested; and the matrix says what it could not run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import matrix
from tests.waiting import until

PROJECT = (matrix.ROOT / "pyproject.toml").read_text("utf-8")


def test_every_supported_version_is_in_the_matrix() -> None:
    names = matrix.environments()
    pythons = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', PROJECT)
    djangos = re.findall(r'"Framework :: Django :: (\d)\.(\d)"', PROJECT)
    assert pythons
    assert {f"py3{minor}" for minor in pythons} == {n.split("-")[0] for n in names} - {"lint"}
    for major, minor in djangos:
        factor = f"django{major}{minor}"
        assert any(name.endswith(factor) for name in names), factor
        assert f'"factor.{factor}", then = ["django~={major}.{minor}.0"]' in PROJECT


def test_lowest_is_the_lowest_that_is_promised() -> None:
    (pins,) = re.findall(r'"factor\.lowest", then = \[("django.*?)\]', PROJECT)
    promised = re.findall(r'^    "(celery|django|django-redis|redis)>=([\d.]+)",', PROJECT, re.M)
    assert len(promised) == 4
    for package, version in promised:
        (pinned,) = re.findall(rf'"{package}==([\d.]+)"', pins)
        assert pinned in (version, f"{version}.0")
    assert 'requires-python = ">=3.10"' in PROJECT
    assert "py310-lowest" in matrix.environments()


@pytest.mark.slow
def test_a_python_that_is_not_here_is_said_and_is_no_failure(tmp_path: Path) -> None:
    ours = f"py3{sys.version_info[1]}-django52"
    not_here = "py310-lowest" if sys.version_info[1] == 14 else "py314-newest"
    done = subprocess.run(
        [sys.executable, "-m", "tests.matrix", "--list", ours, not_here],
        cwd=matrix.ROOT,
        env=os.environ | {"HOME": str(tmp_path), "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^{ours} +to be had$", done.stdout, re.M)
    assert re.search(rf"^{not_here} +not to be had: no Python 3\.\d+ .*$", done.stdout, re.M)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(matrix, "FOLDER", tmp_path)
    return tmp_path


def ran(program: str, minutes: float = 1) -> matrix.Row:
    row = matrix.Row("row", (sys.executable, "-c", program))
    row.run(minutes)
    return row


def test_what_became_of_a_run(folder: Path) -> None:
    passed = ran("print('==== 3 passed, 1 skipped in 0.12s ====')")
    assert not passed.failed
    assert passed.outcome.startswith("3 passed, 1 skipped in 0.12s (")
    failed = ran("print('= 1 failed, 2 passed in 0.12s (0:00:00) =')\nraise SystemExit(1)")
    assert failed.failed
    assert failed.outcome.startswith("1 failed, 2 passed in 0.12s (0:00:00) (")
    # An environment that could not be made, and one whose tests were not found.
    assert ran("raise SystemExit(1)").failed
    assert ran("print('no tests ran in 0.01s')").failed


@pytest.mark.slow
def test_run_that_takes_too_long_is_ended_with_its_children(folder: Path) -> None:
    began = time.monotonic()
    row = ran(
        "import os, time\n"
        "child = os.fork()\n"
        "print(child or os.getpid(), flush=True)\n"
        "time.sleep(600)\n",
        minutes=0.05,
    )
    assert row.failed
    assert "not over after 0.05 minutes" in row.outcome
    assert time.monotonic() - began < 60
    pids = {int(line) for line in (folder / "row.log").read_text().split()}
    assert len(pids) == 1  # The child, as its parent and it call it.
    until(lambda: not any(map(is_alive, pids)), "the end of the child")


def is_alive(pid: int) -> bool:
    """Whether it runs; a zombie has no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False
