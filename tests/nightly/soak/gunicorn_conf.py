"""Gunicorn's configuration of a site that is deployed by a reload: a new process has the version of
the package that the file ``SOAK_VERSION`` names."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def post_fork(server: Any, worker: Any) -> None:
    version = Path(os.environ["SOAK_VERSION"]).read_text()
    if version:
        sys.path.insert(0, version)
