"""A test of records that the server makes, so that only those that may match are sent."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from ..._values.owner import Owner
from ..._values.owner_record import COOLING
from ..criteria import Criteria

__all__ = ["FOLDED_TO_ASCII", "RecordTest"]

FOLDED_TO_ASCII = (
    "\u00df\u0130\u0149\u017f\u01f0\u1e96\u1e97\u1e98\u1e99\u1e9a\u1e9e\u212a"
    "\ufb00\ufb01\ufb02\ufb03\ufb04\ufb05\ufb06"
)
"""all characters beyond ASCII that `str.casefold` writes with a letter of ASCII"""
SAMPLE_TEXT = "\u00e9" + "abcdefgh" * 40
SAMPLE_PID = 70000
MAX_KNOWN_ALIVE = 200
"""processes that the server is told of in one call"""
LONGEST_PART = 1024
"""bytes of a record that say which process it is"""

Encode = Callable[[Any], Any]


class RecordTest:
    """What ``find_records.lua`` is told of a search.

    It must let every record pass that matches, and should let few others pass. How texts stand in
    a record depends on the cache's serializer, so a sample is encoded to see that. If the texts of
    the sample cannot be found in it, as in what is compressed, every record passes.
    """

    def __init__(self, criteria: Criteria, encode: Encode, key_head: bytes) -> None:
        self._head = key_head
        self._texts: list[bytes] = []
        self._words: list[tuple[str, list[bytes]]] = []
        self._alive: dict[bytes, None] = {}
        self._boot: bytes | None = None
        sample = bytes(encode({"text": SAMPLE_TEXT, "pid": SAMPLE_PID}))
        escaped = _in_json(SAMPLE_TEXT) in sample
        if not escaped and SAMPLE_TEXT.encode() not in sample:
            return
        self._write = _in_json if escaped else _in_utf8
        self._pid = "text" if b"%d" % SAMPLE_PID in sample else _form_of_pid(sample)
        self._set(criteria)

    def arguments(self) -> list[Any]:
        """The script's ARGV."""
        flat: list[Any] = [len(self._head), *_counted(self._texts), len(self._words)]
        for pid, texts in self._words:
            flat += pid, *_counted(texts)
        return [*flat, *_counted(list(self._alive))]

    def learn(self, value: bytes, alive: bool | None) -> None:
        """Leave out the records of the process that wrote ``value`` from now on, if it lives."""
        if alive is not True or self._boot is None or len(self._alive) >= MAX_KNOWN_ALIVE:
            return
        first = value.find(b"pid")
        last = value.find(b"thread", first)
        part = value[first : last + 1]
        # The part must say which process it is, whatever else stands in it.
        after = part.partition(self._boot)[2]
        if 0 <= first < last and len(part) <= LONGEST_PART and b"start" in after:
            self._alive[part] = None

    def _set(self, criteria: Criteria) -> None:
        texts = [text for text in (criteria.task, criteria.host) if text]
        if criteria.cooling:
            texts.append(COOLING)
        if criteria.gone:
            here = Owner.current()
            # Of other machines nobody here knows whether a process has ended.
            texts += [text for text in (here.boot, here.pidns) if text]
            self._boot = self._write(here.boot or "") or None
        self._texts = [self._write(text) for text in texts]
        for word in criteria.words:
            if all(each.isascii() or unicodedata.category(each) == "Lo" for each in word):
                self._words.append(self._word(word))

    def _word(self, word: str) -> tuple[str, list[bytes]]:
        others = [each for each in FOLDED_TO_ASCII if not set(word).isdisjoint(each.casefold())]
        # Names are in the key, as UTF-8.
        forms = [form(text) for text in (word, *others) for form in (self._write, _in_utf8)]
        return (self._pid if word.isdecimal() else ""), list(dict.fromkeys(forms))


def _form_of_pid(sample: bytes) -> str:
    return "pickle" if b"J" + SAMPLE_PID.to_bytes(4, "little") in sample else "unknown"


def _in_utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _in_json(text: str) -> bytes:
    return json.dumps(text)[1:-1].encode()


def _counted(texts: Sequence[bytes]) -> list[Any]:
    return [len(texts), *texts]
