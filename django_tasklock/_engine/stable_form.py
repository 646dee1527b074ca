"""The form of a value in a lock's name.

It is the same in every process, and the same for the value of a call and for what its message
delivers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from django.utils.functional import Promise

__all__ = ["digest_of", "quoted", "same_everywhere", "written"]

SCALARS = (str, int, float, bool, type(None), Decimal, date, datetime, time, timedelta, UUID, bytes)
_SCALAR_TYPES = frozenset(SCALARS)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def quoted(value: str) -> str:
    """Return ``value`` with some characters replaced by ``%XX`` for each byte of their UTF-8.

    These are ``:``, ``%``, spaces and characters that cannot be printed. So the parts of a name
    cannot be confused: ("a:b", "c") and ("a", "b:c") give different names.
    """
    if value.isprintable() and not (":" in value or "%" in value or " " in value):
        return value
    return "".join(
        character
        if character.isprintable() and character not in ":% "
        else "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
        for character in value
    )


def written(value: Any, spec: str = "") -> str:
    """Return ``value`` as one part of a name, quoted. ``spec`` is a format spec, as for `format`.

    * A scalar is its text: 7 and "7" give the same text; 1, 1.0 and True give three.
    * A member of an enum is its value.
    * An instance of a model is the model's label and the primary key.
    * A dict, list, tuple, set, dataclass or pydantic model is ``%x`` and a digest of its parts. No
      quoted text contains ``%x``.
    * Any other object is its text, if its class defines ``__str__``.

    Raises `TypeError` for a value that has no form that is the same in every process.
    """
    kind = type(value)
    if kind is int and not spec:
        return str(value)  # Mostly it is a key, and has nothing to be quoted.
    if kind in _SCALAR_TYPES:
        return quoted(format(value, spec))
    if isinstance(value, Enum):
        return written(value.value, spec)
    if spec or isinstance(value, SCALARS):
        # The type formats itself. A type that does not know the format spec raises.
        return quoted(format(value, spec))
    if isinstance(value, Mapping | Set | list | tuple):
        return f"%x{digest_of(value)}"
    label = _label_of(value)
    if label is not None:
        return quoted(label)
    own_text: Any = kind.__str__
    if own_text is not object.__str__ and not _in_messages(value):
        return quoted(same_everywhere(str(value), kind))
    return written(_plain(value))


def same_everywhere(text: str, kind: type) -> str:
    """Return ``text``, which was made of a value of the type ``kind``.

    Raises `TypeError` if the text has the value's address in memory.
    """
    if _ADDRESS.search(text) and kind not in _SCALAR_TYPES:
        raise TypeError(f"the text of a {kind.__name__} differs from process to process: {text}")
    return text


def digest_of(value: Any) -> str:
    """Return a digest of ``value``, of 32 hexadecimal digits.

    Different JSON values have different digests. The order of dicts and sets makes no difference.
    Raises `TypeError` for a value that has no form that is the same in every process.
    """
    text = _canonical(value)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _canonical(value: Any) -> str:
    try:
        # Twice: a message turns all keys into text, which sorts 10 before 9.
        plain = json.loads(json.dumps(value, default=_plain))
        return json.dumps(plain, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise TypeError(str(error)) from error


def _plain(value: Any) -> Any:
    """Return a JSON value for one that JSON does not know. Raises `TypeError` if there is none."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, date | time | datetime):
        return value.isoformat()
    if isinstance(value, Decimal | UUID | timedelta | Promise):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Set):
        # Sorted by text: between elements that are sets, "<" means "is a subset of".
        return sorted(value, key=_canonical)
    if hasattr(value, "__json__"):  # The serializer of messages calls it too.
        return value.__json__()
    if hasattr(value, "model_dump"):  # pydantic
        return value.model_dump(mode="json")
    label = _label_of(value)
    if label is not None:
        return label
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(
        f"{type(value).__name__} is not a plain value, and has no text that is the same in every "
        "process"
    )


def _in_messages(value: Any) -> bool:
    """Return whether the serializer of messages replaces the value by another one."""
    return isinstance(value, Promise) or hasattr(value, "__json__") or hasattr(value, "model_dump")


def _label_of(value: Any) -> str | None:
    """Return ``app.Model.pk`` for an instance of a model; None for any other value.

    Raises `TypeError` for an instance that has no primary key yet.
    """
    meta = getattr(value, "_meta", None)
    if meta is None or isinstance(value, type) or not hasattr(meta, "concrete_model"):
        return None
    if hasattr(value, "__json__"):
        return None
    if value.pk is None:
        raise TypeError(f"{meta.label} has no primary key before it is saved")
    key: Any = value.pk if isinstance(value.pk, SCALARS) else digest_of(value.pk)
    return f"{meta.concrete_model._meta.label}.{key!s}"
