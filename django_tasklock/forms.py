"""The form of a value in a lock's name: the same in every process, and the same before and after
the way through a message."""

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
    """``value`` with ``:``, ``%``, spaces and what cannot be printed as ``%XX`` of its UTF-8.

    So the parts of a name are never mistaken for each other: ("a:b", "c") and ("a", "b:c")
    give different names.
    """
    if value.isprintable() and not any(character in value for character in ":% "):
        return value
    return "".join(
        character
        if character.isprintable() and character not in ":% "
        else "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
        for character in value
    )


def written(value: Any, spec: str = "") -> str:
    """``value`` as one part of a name, quoted.

    Scalars stand there as their text: 7 and "7" are one, 1, 1.0 and True are three. An enum's
    member stands for its value, a model's instance is its label and primary key, and what has
    parts (a dict, list, tuple, set, dataclass, pydantic model) is ``%x`` and a digest of them,
    which no text is quoted to. Of other objects the class must define ``__str__``.

    Raises `TypeError` for a value without a form that is the same in every process.
    """
    kind = type(value)
    if kind in _SCALAR_TYPES:
        return quoted(format(value, spec))
    if isinstance(value, Enum):
        return written(value.value, spec)
    if spec or isinstance(value, SCALARS):
        # With a format spec it is the type's own affair; those without a form of theirs refuse.
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
    """``text``, made of a ``kind``. Raises `TypeError` if it tells where in memory that was."""
    if _ADDRESS.search(text) and kind not in _SCALAR_TYPES:
        raise TypeError(f"the text of a {kind.__name__} differs from process to process: {text}")
    return text


def digest_of(value: Any) -> str:
    """32 hexadecimal digits that tell JSON-able values apart, whatever the order of dicts and sets.

    Raises `TypeError` for what has no form that is the same in every process.
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
    """What stands in JSON for a value that JSON does not know."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, date | time | datetime):
        return value.isoformat()
    if isinstance(value, Decimal | UUID | timedelta | Promise):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Set):
        # Not by the elements themselves: of sets, "<" is no order.
        return sorted(value, key=_canonical)
    if hasattr(value, "__json__"):  # as a message would carry it
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
    """Whether a message carries the value, and turns it into something else."""
    return isinstance(value, Promise) or hasattr(value, "__json__") or hasattr(value, "model_dump")


def _label_of(value: Any) -> str | None:
    """``app.Model.pk`` of a model's instance that is in the database; None for anything else."""
    meta = getattr(value, "_meta", None)
    if meta is None or isinstance(value, type) or not hasattr(meta, "concrete_model"):
        return None
    if hasattr(value, "__json__"):
        return None
    if value.pk is None:
        raise TypeError(f"{meta.label} has no primary key before it is saved")
    key: Any = value.pk if isinstance(value.pk, SCALARS) else digest_of(value.pk)
    return f"{meta.concrete_model._meta.label}.{key!s}"
