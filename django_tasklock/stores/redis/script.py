"""The Lua scripts, as they are sent to the server."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files


class Script:
    """A Lua script, by the name of its file.

    A line ``--- include PART`` is replaced by the text of that file. Parts are included where they
    are needed, also within a branch: to define a function costs the server as much as a small
    command, each time that the script runs.

    All keys that a script uses are among its KEYS, or are made of one of them.
    """

    def __init__(self, name: str) -> None:
        self.text = _with_parts(name).encode()
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


def _with_parts(file: str) -> str:
    text = (files("django_tasklock.stores") / "lua" / f"{file}.lua").read_text("utf-8")
    return re.sub(r"(?m)^ *--- include (\w+)$", lambda part: _with_parts(part[1]), text)
