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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation")
    done = subprocess.run(
        [*build, "--outdir", str(folder), str(ROOT)],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    written = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "django_tasklock").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (
            archive.read(name).decode()
            for name in archive.namelist()
            if name.endswith(".dist-info/METADATA")
        )
    assert packed == written
    assert {Path(name).suffix for name in packed} >= {".py", ".lua", ".html", ".typed", ".css"}
    requires = [
        line.removeprefix("Requires-Dist: ").split(";")
        for line in metadata.split("\n")
        if line.startswith("Requires-Dist: ")
    ]
    always = {words[0].split(">")[0] for words in requires if len(words) == 1}
    assert always == {"celery", "django", "django-redis", "redis"}


@pytest.mark.nightly
def test_the_page_on_pypi_has_no_link_that_leads_nowhere(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        _, _, page = archive.read(name).decode().partition("\n\n")
    assert "Start: tutorial; move from" in page
    assert re.findall(r"\]\((?!https?:|#)", page) == []
