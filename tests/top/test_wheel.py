"""What is installed is what was written: Lua, templates, static files and types included."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow

PROGRAM = """
import json
from importlib.resources import files
from pathlib import Path

import django
from django.conf import settings

settings.configure(
    USE_TZ=True,
    STATIC_URL="/static/",
    ROOT_URLCONF="",
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.staticfiles",
        "django_tasklock",
    ],
    TEMPLATES=[
        {"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True},
    ],
    CACHES={
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": "redis://127.0.0.1:1/0",
        }
    },
)
django.setup()

import django_tasklock
from django.contrib.staticfiles.finders import find
from django.template.loader import get_template
from django_tasklock.stores import stores
from django_tasklock.stores.redis import RedisStore

assert isinstance(stores["default"], RedisStore)
package = files("django_tasklock")
home = Path(str(package))

def below(folder, pattern):
    return sorted(path.relative_to(home / folder).as_posix() for path in home.glob(pattern))

templates = below("templates", "templates/**/*.html")
static = [name for name in below("static", "static/**/*") if "." in name]
print(json.dumps({
    "home": str(home),
    "version": django_tasklock.__version__ if hasattr(django_tasklock, "__version__") else None,
    "lua": {
        script.name: script.read_text("utf-8")
        for script in (package / "stores" / "lua").iterdir()
    },
    "templates": {name: get_template(name).origin.name for name in templates},
    "static": {name: find(name) for name in static},
    "typed": (package / "py.typed").is_file(),
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    _run(
        *(sys.executable, "-m", "build", "--wheel", "--no-isolation"),
        *("--outdir", str(folder), str(ROOT)),
    )
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
    assert "Content-Type" not in page
    assert len(page) > 4000
    assert "Start: tutorial; move from" in page
    assert re.findall(r"\]\((?!https?:|#)", page) == []


@pytest.mark.nightly
def test_an_installed_wheel_finds_its_lua_templates_and_static_files(
    wheel: Path, tmp_path: Path
) -> None:
    installed = tmp_path / "installed"
    _run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"),
        *("--disable-pip-version-check", "--target", str(installed), str(wheel)),
    )
    found = json.loads(
        _run(
            *(sys.executable, "-c", PROGRAM),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(installed)},
        )
    )
    home = installed / "django_tasklock"
    assert found["home"] == str(home)
    assert found["typed"] is True
    source = ROOT / "django_tasklock"
    assert found["lua"] == {
        path.name: path.read_text("utf-8") for path in (source / "stores" / "lua").glob("*.lua")
    }
    assert found["lua"]
    assert found["templates"]
    assert all(Path(path).is_relative_to(home) for path in found["templates"].values())
    assert found["static"]
    assert all(Path(path).is_relative_to(home) for path in found["static"].values())


def _run(*command: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
