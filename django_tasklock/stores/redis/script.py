"""The Lua scripts, as they are sent to the server."""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from importlib.resources import files

__all__ = ["ONE_COMMAND", "Script", "numbered"]

SHARDED = {"'PUBLISH'": "'SPUBLISH'", "'NUMSUB'": "'SHARDNUMSUB'"}
"""what a script on a cluster says instead: PUBSUB NUMSUB knows of one node's subscribers only"""


class Script:
    """A Lua script, by the name of its file.

    A line ``--- include PART`` is replaced by the text of that file. Helpers are included where
    they are needed, also within a branch: to define a function costs the server as much as a small
    command, each time that the script runs.

    The last argument is the number of the call, and the reply begins with it, so that a reply to
    another call is noticed. The text of the file sees the other arguments only. What it returns as
    a text is sent in one text with the number, and anything else as a list of both: Redis takes
    5,000 instructions to make a list out of a table of Lua, and 600 for a text.

    All keys that a script uses are among its KEYS: a server may refuse others.
    """

    def __init__(self, name: str) -> None:
        self._set(numbered(_with_parts(name)))

    def _set(self, text: str) -> None:
        self.text = text.encode()
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()

    @cached_property
    def sharded(self) -> Script:
        """The same script with the channels of a cluster's shards."""
        text = self.text.decode()
        for plain, sharded in SHARDED.items():
            text = text.replace(plain, sharded)
        if text.encode() == self.text:
            return self
        made = object.__new__(Script)
        made._set(text)
        return made

    @cached_property
    def notifies(self) -> bool:
        """Whether the script looks which waiters are subscribed, and sends them messages."""
        return b"NUMSUB'" in self.text


def numbered(text: str) -> str:
    """The text of a script as it is sent: it takes the number of the call, and answers with it."""
    return (
        "local number = ARGV[#ARGV]\nARGV[#ARGV] = nil\n"
        f"local function main()\n{text}\nend\nlocal answer = main()\n"
        "if type(answer) == 'string' then return number .. ' ' .. answer end\n"
        "return {number, answer or false}"
    )


def _with_parts(file: str) -> str:
    text = (files("django_tasklock.stores") / "lua" / f"{file}.lua").read_text("utf-8")
    return re.sub(r"(?m)^ *--- include (\w+)$", lambda part: _with_parts(part[1]), text)


ONE_COMMAND = Script("one_command")
