"""The names of locks, made of the arguments of a call: templates, digests and `make_name`.

A value has one form in a name: the same in every process, and the same for the value of a call and
for what its message delivers.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import string
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from urllib.parse import quote
from uuid import UUID

from django.db.models import Model
from django.utils.functional import Promise

from .._values.arguments import LONGEST_NAME_CHARACTERS, checked_name, checked_template
from ..exceptions import InvalidLockConfig

SCALARS = (str, int, float, bool, type(None), Decimal, date, datetime, time, timedelta, UUID, bytes)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def bound_arguments(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name, with the defaults of those that were not passed.

    The result is the same for positional and for keyword arguments. What a ``**kwargs`` parameter
    takes up is returned beside the other arguments, by name; with ``**`` before the name where a
    positional-only parameter or ``*args`` has the same one. Raises `TypeError` where the call
    itself would.
    """
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            for name, value in arguments.pop(parameter.name).items():
                arguments[f"**{name}" if name in arguments else name] = value
    return arguments


def quoted(value: str) -> str:
    """Return ``value`` with some characters replaced by ``%XX`` for each byte of their UTF-8.

    These are ``:``, ``%``, spaces and characters that cannot be printed. So the parts of a name
    cannot be confused: ("a:b", "c") and ("a", "b:c") give different names.
    """
    parts = []
    for character in value:
        plain = character.isprintable() and character not in ":% "
        parts.append(character if plain else quote(character, errors="surrogatepass"))
    return "".join(parts)


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
    if isinstance(value, Enum):
        return written(value.value, spec)
    if spec or isinstance(value, SCALARS):
        # The type formats itself. A type that does not know the format spec raises.
        return quoted(format(value, spec))
    if isinstance(value, Mapping | Set | list | tuple):
        return f"%x{_digest(_canonical(value))}"
    own_text: Any = type(value).__str__
    # The serializer of messages replaces the last ones by another value.
    replaced = isinstance(value, Model | Promise) or hasattr(value, "__json__")
    if own_text is object.__str__ or replaced or hasattr(value, "model_dump"):
        return written(_plain(value))
    return quoted(_same_everywhere(str(value), type(value)))


def _same_everywhere(text: str, kind: type) -> str:
    """Return ``text``, which was made of a value of the type ``kind``.

    Raises `TypeError` if the text has the value's address in memory.
    """
    if _ADDRESS.search(text) and kind not in SCALARS:
        raise TypeError(f"the text of a {kind.__name__} differs from process to process: {text}")
    return text


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _canonical(value: Any) -> str:
    """Return a text that is the same for the same JSON value, whatever the order of dicts and sets.

    Raises `TypeError` for a value that has no form that is the same in every process.
    """
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
    if isinstance(value, date | time):
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
    if isinstance(value, Model):
        if value.pk is None:
            raise TypeError(f"{value._meta.label} has no primary key before it is saved")
        key = value.pk if isinstance(value.pk, SCALARS) else _digest(_canonical(value.pk))
        model: Any = value._meta.concrete_model  # Not a proxy of it, nor one with less fields.
        return f"{model._meta.label}.{key!s}"
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


class _Formatter(string.Formatter):
    """Fills a template. It reads ``{order.pk}`` of a mapping as its item "pk".

    An argument that was a pydantic model when the task was sent may be a dict where it runs.
    """

    def get_field(self, field: str, args: Any, arguments: Any) -> Any:
        root, _, rest = field.partition(".")
        if not rest or "[" in field:
            return super().get_field(field, args, arguments)
        value = arguments[root]
        for part in rest.split("."):
            value = value[part] if isinstance(value, Mapping) else getattr(value, part)
        return value, root

    def convert_field(self, value: Any, conversion: Any) -> Any:
        text = super().convert_field(value, conversion)
        return _same_everywhere(text, type(value)) if conversion else value

    def format_field(self, value: Any, spec: str) -> str:
        return written(value, spec)


_formatter = _Formatter()


class NameTemplate:
    """A name with fields in braces, as for `str.format`: ``"video:{video_id}"``.

    A field names a parameter of ``signature``. It may have attributes, items and a format spec:
    ``{order.pk}``, ``{day:%Y-%m-%d}``. `written` makes the text of its value: of a scalar the
    scalar's own text, of a dict, list or the like a digest. A conversion (``{x!r}``) takes the text
    that Python makes; of a dict, that text depends on the order of the keys.

    Raises `TypeError` if the template is not a str. Raises `ValueError` for a field that is not a
    parameter, reads an attribute such as ``__class__`` or has another field in it, and for a
    template that could never make a valid name.
    """

    def __init__(self, template: str, signature: inspect.Signature) -> None:
        self.template, self.signature = checked_template(template), signature
        pieces = list(_formatter.parse(template))
        self.constant = all(field is None for _, field, _, _ in pieces)
        for _, field, spec, _ in pieces:
            if field is not None:
                self._check_field(field, spec or "")
        literals = "".join(literal for literal, *_ in pieces)
        if literals or self.constant:
            checked_name(literals)

    def _check_field(self, field: str, spec: str) -> None:
        name = re.split(r"[.\[]", field)[0]
        if not name or name.isdigit():
            raise ValueError(f"a field of {self.template!r} must name an argument: {{{field}}}")
        if ".__" in field:
            # What belongs to a class or a module is no value of a call, and may be a secret.
            raise ValueError(f"a field of {self.template!r} reads a special attribute: {{{field}}}")
        if "{" in spec:
            raise ValueError(f"a field of {self.template!r} has another in it: {{{field}:{spec}}}")
        check_argument(repr(self.template), name, self.signature)

    def fill(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the name for one call.

        Raises `TypeError` or `ValueError` if the arguments do not give a valid name.
        """
        arguments = {} if self.constant else bound_arguments(self.signature, args, kwargs)
        return self.fill_from(arguments)

    def fill_from(self, arguments: Mapping[str, Any]) -> str:
        """As `fill`, from a call's arguments by name."""
        try:
            name = _formatter.vformat(self.template, (), arguments)
        except (KeyError, AttributeError, IndexError) as error:
            what = f"there is no argument or key {error}" if isinstance(error, KeyError) else error
            raise ValueError(
                f"{self.template!r} cannot be filled: {what}; pass what the template reads, or "
                "change the template"
            ) from error
        except TypeError as error:
            raise TypeError(f"{self.template!r} cannot be filled: {error}") from error
        return checked_name(name)


class ArgumentNames:
    """The ``names`` of some of a call's arguments: what `by` returns.

    Raises `InvalidLockConfig` without names, and for a name that is not a str.
    """

    def __init__(self, *names: str) -> None:
        if not names or not all(isinstance(name, str) for name in names):
            raise InvalidLockConfig(f"by() takes the names of arguments, not {names!r}")
        self.names = names

    def __repr__(self) -> str:
        return f"by({', '.join(map(repr, self.names))})"

    def check(self, signature: inspect.Signature) -> None:
        """Raise `ValueError` for a name that is not an argument of ``signature``."""
        for name in self.names:
            check_argument(repr(self), name, signature)

    def name_from(self, prefix: str, arguments: Mapping[str, Any]) -> str:
        """Return ``prefix`` and the values of these arguments, joined by `make_name`.

        Raises `ValueError` if an argument is missing, and `TypeError` as `make_name` does.
        """
        try:
            values = [arguments[name] for name in self.names]
        except KeyError as error:
            raise ValueError(f"{self!r} cannot be filled: there is no argument {error}") from error
        return make_name(prefix, *values)


def by(*names: str) -> ArgumentNames:
    """Return a ``lock_name`` made of the task's name and some of its arguments.

    With ``lock_name=by("user_id", "kind")`` the lock's name is the task's name and the values of
    these two arguments, as `make_name` joins them. The other arguments make no difference. Raises
    `InvalidLockConfig` without ``names``; the definition of the task raises it for a name that is
    not one of the task's arguments.
    """
    return ArgumentNames(*names)


def make_name(*parts: Any) -> str:
    """Return a valid lock name made of ``parts``, which may be of any type.

    ``make_name("order", order.pk, "a b")`` returns ``"order:7:a%20b"``. Parts are joined by colons.
    Each is quoted, so ("a:b", "c") and ("a", "b:c") give different names. A name that would be too
    long is cut, and ends with ``%x`` and a digest of the whole name.

    What a part becomes, as in a template:

    * a scalar: its text. So 7 and "7" give the same name; 1, 1.0 and True give three.
    * a member of an enum: its value.
    * an instance of a model: the model's label and the primary key.
    * a dict, list, tuple, set, dataclass or pydantic model: a digest, which does not depend on the
      order of keys.

    Raises `TypeError` without parts, and for a part that has no form that is the same in every
    process, such as an object whose text is its address in memory.
    """
    if not parts:
        raise TypeError("make_name() must get at least one part")
    text = ":".join(map(written, parts))
    if 0 < len(text) <= LONGEST_NAME_CHARACTERS:
        return text
    return f"{text[: LONGEST_NAME_CHARACTERS - 34]}%x{_digest(text)}"


def digest_name(prefix: str, arguments: Mapping[str, Any]) -> str:
    """Return ``prefix``, a colon, and a digest of the arguments.

    The digest is the same in every process, and the same for the arguments of the call and for
    those of its message. Raises `TypeError` if an argument has no form that allows that.
    """
    try:
        digest = _digest(_canonical(arguments))
    except TypeError as error:
        raise TypeError(
            f"no name can be made of the arguments of {prefix}: {error}; give the task a lock_name"
        ) from error
    return f"{quoted(prefix)[: LONGEST_NAME_CHARACTERS - len(digest) - 1]}:{digest}"


def check_argument(what: str, name: str, signature: inspect.Signature) -> None:
    """Raise `ValueError` if ``name``, which ``what`` names, is no argument of a call."""
    parameter = signature.parameters.get(name)
    if parameter is not None and parameter.kind is parameter.VAR_KEYWORD:
        raise ValueError(f"{what} names **{name}: name one of the arguments that it takes up")
    anything = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    if parameter is None and not anything:
        known = ", ".join(signature.parameters) or "none"
        raise ValueError(
            f"{what} names the argument {name!r}, and there is no such parameter "
            f"(there are: {known})"
        )
