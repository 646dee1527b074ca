"""What type checkers say of code that uses the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import needs

ROOT = Path(__file__).parents[2]
USES = ROOT / "tests" / "typed_uses.py"
# Without the plugin for Django's models, which a project may not have. What is not needed for the
# uses is not looked at: `make lint` does that.
MYPY = ["--strict", "--config-file=", "--follow-imports=silent", "--warn-unreachable"]
PYRIGHT = {
    "include": [str(USES)],
    "extraPaths": [str(ROOT)],
    "typeCheckingMode": "strict",
    # Those are mypy's. A mistake that is none is an error.
    "enableTypeIgnoreComments": False,
    "reportUnnecessaryTypeIgnoreComment": "error",
}


def test_mypy_accepts_the_uses_and_refuses_the_mistakes() -> None:
    # One that is kept: only the first run takes long.
    cache = Path(tempfile.gettempdir(), f"tasklock-types-{os.getuid()}")
    said = checked("mypy", *MYPY, f"--cache-dir={cache}", str(USES))
    assert said.returncode == 0, said.stdout + said.stderr


def test_pyright_accepts_the_uses_and_refuses_the_mistakes(tmp_path: Path) -> None:
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps(PYRIGHT))
    said = checked("basedpyright", f"--project={config}", f"--pythonpath={sys.executable}")
    assert said.returncode == 0, said.stdout + said.stderr


def checked(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    needs.package(tool)
    command = [sys.executable, "-m", tool, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | {"MYPYPATH": str(ROOT)}, text=True,
        capture_output=True, timeout=240, check=False,
    )  # fmt: skip
