"""What really happened, counted outside the database and outside Redis.

A row says what the code believes. A line here is written at the side effect itself: one for each
ffmpeg that finished, each charge at the (pretended) payment gateway, each report sent. Doubles show
up here whatever the rows say.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from django.conf import settings


def _path(name: str) -> Path:
    return Path(settings.MEDIA_ROOT).parent / "ledgers" / f"{name}.jsonl"


def append(name: str, **fields: Any) -> None:
    """Add one line; lines of several processes never mix (O_APPEND, one write)."""
    path = _path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"at": time.time(), "pid": os.getpid(), **fields}) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def read(name: str) -> list[dict[str, Any]]:
    """Return the lines written so far, oldest first."""
    try:
        text = _path(name).read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines()]
