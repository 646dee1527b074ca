"""The golden files: a folder for each version that has changed a format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def versions() -> list[Path]:
    """The folders, the oldest first."""
    found = (each for each in FOLDER.iterdir() if each.name[0].isdigit())
    return sorted(found, key=lambda each: [int(part) for part in each.name.split(".")])


def of(version: Path, name: str) -> Any:
    """What a version's file of a format says."""
    return json.loads((version / f"{name}.json").read_text())


def texts() -> Iterator[tuple[str, str, str, Any]]:
    """All that was written: the format, what it is, the text, and how it is to be read."""
    for version in versions():
        for file in sorted(version.glob("*.json")):
            if file.stem not in ("keys", "columns"):
                for what, said in of(version, file.stem).items():
                    yield file.stem, f"{version.name}: {what}", said["written"], said["read"]
