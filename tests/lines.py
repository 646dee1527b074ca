"""Files that other processes write line by line."""

from __future__ import annotations

from pathlib import Path


def whole_lines(written: Path | bytes) -> list[bytes]:
    """The lines of a file or of its content, without a last one that is not written to its end.

    Even one call of ``write`` may be seen in parts: Linux carries it out a page at a time.
    """
    content = written if isinstance(written, bytes) else written.read_bytes()
    return content[: content.rfind(b"\n") + 1].splitlines()
