"""Decoding the values of locks' keys without running code: anybody may have written them.

A cache's serializer is mostly pickle, and unpickling runs what the writer of a value wants. A
record of ours is a flat dict of plain values. Its pickle needs only the few instructions that
`_flat` allows: they call nothing, and take no more memory than the value has bytes.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import Any

from ..._compat.redis_caches import DECOMPRESSORS, NO_COMPRESSION
from ..record import interrupts

__all__ = ["MAX_VALUE_BYTES", "decoder"]

MAX_VALUE_BYTES = 16384
"""of a value that may be a record, compressed or not; value_of_lock.lua has it too"""

SAMPLE_RECORD: dict[str, Any] = {
    "text": "r\u00e9", "int": 7, "wide": 2**40, "float": 0.5, "yes": True, "no": False,
    "none": None,
}  # fmt: skip
"""values of every type that a record has; its encoding shows how to decode a cache's records"""
FLAT_PROTOCOLS = range(2, 6)
"""those of pickle that `_flat_pickle` reads"""

Decode = Callable[[bytes], Any]


class Refused(ValueError):
    """The value cannot be a record."""


class Restricted(pickle.Unpickler):
    """Knows no classes and no functions."""

    def find_class(self, module: str, name: str) -> Any:
        raise Refused(f"a record has no {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise Refused("a record refers to nothing")


def decoder(
    encode: Callable[[Any], Any], loads: Decode, decompress: Decode | None = None
) -> Decode:
    """The function that decodes a cache's values, and raises for most that are no record.

    ``encode``, ``decompress`` and ``loads`` are the cache's own. ``loads`` is used only for a
    serializer that writes neither pickles nor JSON: django-redis's for MessagePack, which runs no
    code, or one of the site's own.
    """
    sample = encode(SAMPLE_RECORD)
    if decompress is not None:
        decompress = _bounded(decompress)
    for read in (_flat_pickle, _json, _restricted_pickle):
        with suppress(Exception):
            plain = sample if decompress is None else decompress(sample)
            if plain in _usual_pickles() or read(plain) == SAMPLE_RECORD:
                return _in_steps(read, decompress)
    return _in_steps(loads, decompress)


def _usual_pickles() -> list[bytes]:
    """The sample as plain pickle writes it, which `_flat_pickle` can read. To find that out by the
    regular expression would be two fifths of what it takes to make a store."""
    return [pickle.dumps(SAMPLE_RECORD, protocol) for protocol in FLAT_PROTOCOLS]


def _in_steps(read: Decode, decompress: Decode | None) -> Decode:
    def decoded(value: bytes) -> Any:
        if len(value) > MAX_VALUE_BYTES:
            raise Refused("too long")
        return read(value if decompress is None else decompress(value))

    return decoded


def _flat_pickle(value: bytes) -> Any:
    if not _flat().fullmatch(value):
        raise Refused("no flat pickle")
    # It calls nothing: that is what was matched.
    return pickle.loads(value)  # noqa: S301  # nosec B301


@cache
def _flat() -> re.Pattern[bytes]:
    """Matches pickles (`FLAT_PROTOCOLS`) of a dict of None, bool, int, float and short str.

    Made when the first value is read: a process that meets no other holder needs none.
    """

    def counted(after: bytes, lengths: Iterable[int]) -> bytes:
        # A length and as many bytes. A regular expression cannot count, so it lists all lengths.
        return b"(?:%b)" % b"|".join(re.escape(bytes((n,))) + after + b".{%d}" % n for n in lengths)

    # The lengths of a record's texts first: they match sooner.
    lengths = sorted(range(256), key=lambda n: (n not in (36, 22, 4, 3, 5, 2, 7, 6, 10), n))
    text = b"|".join(
        (
            rb"\x8c%b\x94?" % counted(b"", lengths),  # SHORT_BINUNICODE, MEMOIZE
            b"h.",  # BINGET
            b"X%b(?:q.)?" % counted(rb"\x00\x00\x00", lengths),  # BINUNICODE, BINPUT
        )
    )
    number = b"|".join(
        (
            b"G.{8}|M..|J.{4}|K.",  # BINFLOAT, BININT2, BININT, BININT1
            rb"[N\x88\x89]",  # NONE, NEWTRUE, NEWFALSE
            rb"\x8a" + counted(b"", range(9)),  # LONG1
        )
    )
    head = rb"\x80[\x02-\x05](?:\x95.{8})?\}(?:\x94|q.)?\("  # PROTO, FRAME, EMPTY_DICT, MARK
    pair = b"(?:%b)(?:%b|%b)" % (text, text, number)
    return re.compile(rb"%b(?:%b)*u\." % (head, pair), re.DOTALL)  # SETITEMS, STOP


def _restricted_pickle(value: bytes) -> Any:
    """Decodes pickles of the other protocols: runs no code, but may take a lot of memory."""
    stream = io.BytesIO(value)
    read = Restricted(stream).load()
    if stream.read():
        raise Refused("there is more after the pickle")
    return read


def _json(value: bytes) -> Any:
    return json.loads(value.decode())


def _bounded(decompress: Decode) -> Decode | None:
    """A compressor's ``decompress``, which stops after `MAX_VALUE_BYTES` bytes: a few compressed
    bytes may stand for gigabytes. None if nothing is compressed; a compressor that is not
    django-redis's is returned as it is."""
    module = getattr(decompress, "__module__", "")
    if module == NO_COMPRESSION:
        return None
    made = DECOMPRESSORS.get(module)
    if made is None:
        return decompress

    def bounded(value: bytes) -> bytes:
        try:
            return bytes(made().decompress(value, MAX_VALUE_BYTES))
        except Exception as error:
            if interrupts(error):
                raise
            return value  # Small values are not compressed.

    return bounded
