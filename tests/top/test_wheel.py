"""What is installed is what was written: Lua, templates, static files and types included."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    # Given a wheel that is built from this project
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    done = subprocess.run(
        [*build, str(ROOT)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    (built,) = tmp_path.glob("*.whl")
    written = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "django_tasklock").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(built) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        (info,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata, _, page = archive.read(info).decode().partition("\n\n")

    # I expect it to hold every file of the package, and to need what it says it needs
    assert packed == written
    assert {Path(name).suffix for name in packed} >= {".py", ".lua", ".html", ".typed", ".css"}
    always = re.findall(r"^Requires-Dist: ([\w-]+)(?!.*;)", metadata, re.MULTILINE)
    assert {*always} == {"asgiref", "celery", "django", "django-redis", "redis"}

    # And no link of its page on PyPI to lead nowhere
    assert "Tutorial · recipes · moving from another lock" in page
    assert re.findall(r"\]\((?!https?:|#)", page) == []
