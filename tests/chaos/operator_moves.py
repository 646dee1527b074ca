"""What a thread of a player does as an operator would: it looks at locks, and clears them."""

from __future__ import annotations

import time

from django_tasklock import locks
from tests.chaos.calls import Calls

__all__ = ["OperatorMoves"]


class OperatorMoves(Calls):
    """The moves that take no lock."""

    def _clear(self) -> None:
        call, name = self._begin()
        self._write("looking", call, name, verb="get")
        seen = self._try("get", call, name, lambda: locks.get(name))
        if seen is None:
            return
        token = seen.value.token if seen.value else None
        self._write("looked", call, name, verb="get", token=token)
        if seen.value is None or token is None:
            return
        # It takes an operator some time, in which the lock may change hands.
        time.sleep(self._chance.choice([0.0, 0.0, self._chance.uniform(0, 0.5)]))
        self._write("clearing", call, name, token=token, fence=seen.value.fence)
        said = self._try("clear", call, name, lambda: locks.clear(name, token=token))
        if said is not None:
            self._write("cleared", call, name, said=said.value)

    def _look(self) -> None:
        call, name = self._begin()
        verb = self._chance.choice(["get", "is_locked", "list", "count"])
        self._write("looking", call, name, verb=verb)
        if verb == "get":
            info = self._try(verb, call, name, lambda: locks.get(name))
            if info is not None:
                token = info.value.token if info.value else None
                self._write("looked", call, name, verb=verb, token=token)
        elif verb == "is_locked":
            said = self._try(verb, call, name, lambda: locks.is_locked(name))
            if said is not None:
                self._write("looked", call, name, verb=verb, said=said.value)
        elif verb == "list":
            rows = self._try(verb, call, name, lambda: locks.list())
            if rows is not None:
                tokens = {row.name: row.token for row in rows.value}
                self._write("looked", call, verb=verb, tokens=tokens)
        else:
            number = self._try(verb, call, name, lambda: locks.count())
            if number is not None:
                self._write("looked", call, verb=verb, number=number.value)
