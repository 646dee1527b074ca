"""Reading what a lock's key holds, which may have been written by anybody, without running it.

A cache's own serializer is mostly a pickle, and to unpickle a value is to do what its writer
wants. A record of ours is a flat dict of plain values, for which no pickle needs more than the
few instructions that `FLAT_PICKLE` allows: they call nothing, and take no more memory than the
value has bytes.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

from ..record import interrupts

__all__ = ["LONGEST", "decoder"]

LONGEST = 16384
"""bytes of the longest value that may be a record, compressed or not; holding.lua has it too"""

PROBE: dict[str, Any] = {
    "text": "r\u00e9", "int": 7, "wide": 2**40, "float": 0.5, "yes": True, "no": False,
    "none": None,
}  # fmt: skip
"""a record's kinds of values: how a cache encodes it shows how its records can be read"""

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
    """What reads a cache's values, and raises for most that are no record.

    ``encode`` is the cache's own way there; ``decompress``, where it has one, and ``loads`` are
    its way back. A serializer that writes pickles or JSON is not asked to read them. Only one
    that writes something else is: django-redis's for MessagePack runs no code either, and of a
    site's own nothing is known.
    """
    sample = encode(PROBE)
    if decompress is not None:
        decompress = _bounded(decompress)
    for read in (_flat_pickle(), _json, _restricted_pickle):
        with suppress(Exception):
            if read(sample if decompress is None else decompress(sample)) == PROBE:
                return _in_steps(read, decompress)
    return _in_steps(loads, decompress)


def _in_steps(read: Decode, decompress: Decode | None) -> Decode:
    def decoded(value: bytes) -> Any:
        if len(value) > LONGEST:
            raise Refused("too long")
        return read(value if decompress is None else decompress(value))

    return decoded


@cache
def _flat_pickle() -> Decode:
    is_flat, loads = _flat().fullmatch, pickle.loads

    def read(value: bytes) -> Any:
        if not is_flat(value):
            raise Refused("no flat pickle")
        return loads(value)

    return read


def _flat() -> re.Pattern[bytes]:
    """Pickles of protocols 2 to 5, of a dict of several None, bool, int, float and short str."""

    def counted(after: bytes, lengths: Iterable[int]) -> bytes:
        # A length, and as many bytes: no expression can count, but it can list the lengths.
        return b"(?:%b)" % b"|".join(re.escape(bytes((n,))) + after + b".{%d}" % n for n in lengths)

    # Those of a record's texts first.
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
    """For protocols that `_flat` does not know: runs no code, but may take a lot of memory."""
    stream = io.BytesIO(value)
    read = Restricted(stream).load()
    if stream.read():
        raise Refused("there is more after the pickle")
    return read


def _json(value: bytes) -> Any:
    return json.loads(value.decode())


def _bounded(decompress: Decode) -> Decode | None:
    """What a compressor of django-redis does, but for no more than `LONGEST` bytes: a few bytes
    may stand for gigabytes. A site's own compressor as it is."""
    module = getattr(decompress, "__module__", "")
    if module == "django_redis.compressors.identity":
        return None
    made = _DECOMPRESSORS.get(module)
    if made is None:
        return decompress

    def bounded(value: bytes) -> bytes:
        try:
            return bytes(made().decompress(value, LONGEST))
        except Exception as error:
            if interrupts(error):
                raise
            return value  # Little values are not compressed.

    return bounded


def _from(module: str, name: str, **options: Any) -> Callable[[], Any]:
    """Imported when it is used, which is where that compressor's own module is there."""
    return lambda: getattr(import_module(module), name)(**options)


_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "django_redis.compressors.gzip": lambda: zlib.decompressobj(31),
    "django_redis.compressors.lz4": _from("lz4.frame", "LZ4FrameDecompressor"),
    "django_redis.compressors.lzma": _from("lzma", "LZMADecompressor", memlimit=2**26),
    "django_redis.compressors.zlib": zlib.decompressobj,
    "django_redis.compressors.zstd": _from("pyzstd", "ZstdDecompressor"),
}
