"""Makes a lock's name from the arguments of a call."""

from __future__ import annotations

import hashlib
import inspect
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._values.arguments import LONGEST_NAME_CHARACTERS, checked_name
from ..exceptions import InvalidLockConfig
from .binding import Binder
from .stable_form import digest_of, quoted, same_everywhere, written

__all__ = [
    "ArgumentNames",
    "NameTemplate",
    "by",
    "check_argument",
    "digest_name",
    "make_name",
    "quoted",
]


class _Formatter(string.Formatter):
    """Reads ``{order.pk}`` of a mapping as its item "pk".

    An argument that was a pydantic model when the task was sent may be a dict where it runs.
    """

    def get_field(self, field: str, args: Any, arguments: Any) -> Any:
        root, _, rest = field.partition(".")
        if rest and "[" not in field:
            value = arguments[root]
            for part in rest.split("."):
                value = value[part] if isinstance(value, Mapping) else getattr(value, part)
            return value, root
        return super().get_field(field, args, arguments)


_formatter = _Formatter()


class NameTemplate:
    """A name with fields in braces, as for `str.format`: ``"video:{video_id}"``.

    A field names a parameter of ``signature``. It may have attributes, items and a format spec:
    ``{order.pk}``, ``{day:%Y-%m-%d}``. `written` makes the text of its value: of a scalar the
    scalar's own text, of a dict, list or the like a digest. A conversion (``{x!r}``) takes the text
    that Python makes; of a dict, that text depends on the order of the keys.

    Raises `TypeError` if the template is not a str. Raises `ValueError` for a field that is not a
    parameter or reads an attribute such as ``__class__``, and for a template that could never make
    a valid name.
    """

    def __init__(self, template: str, signature: inspect.Signature) -> None:
        if not isinstance(template, str):
            raise TypeError(f"a template is a str, not {type(template).__name__}: {template!r}")
        self.template = template
        self.signature = signature
        self._bind = Binder(signature)
        self._pieces = tuple(_formatter.parse(template))
        literals = ""
        self.constant = True
        for literal, field, _, _ in self._pieces:
            literals += literal
            if field is None:
                continue
            self.constant = False
            name = _root(field)
            if not name or name.isdigit():
                raise ValueError(f"a field of {template!r} has no name: {{{field}}}")
            if ".__" in field:
                # What belongs to a class or a module is no value of a call, and may be a secret.
                raise ValueError(f"a field of {template!r} reads a special attribute: {{{field}}}")
            check_argument(repr(template), name, signature)
        if literals or self.constant:
            checked_name(literals)

    def fill(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the name for one call.

        Raises `TypeError` or `ValueError` if the arguments do not give a valid name.
        """
        if self.constant:
            return checked_name(self.template.format())
        return self.fill_from(self._bind(args, kwargs))

    def fill_from(self, arguments: Mapping[str, Any]) -> str:
        """As `fill`, from a call's arguments by name."""
        try:
            name = "".join(self._parts(arguments))
        except (KeyError, AttributeError, IndexError) as error:
            raise ValueError(f"{self.template!r} cannot be filled: no {error}") from error
        except TypeError as error:
            raise TypeError(f"{self.template!r} cannot be filled: {error}") from error
        return checked_name(name)

    def _parts(self, arguments: Mapping[str, Any]) -> Iterator[str]:
        for literal, field, spec, conversion in self._pieces:
            yield literal
            if field is not None:
                value = arguments.get(field, _formatter)
                if value is _formatter:  # An attribute or an item of an argument.
                    value, _ = _formatter.get_field(field, (), arguments)
                if conversion:
                    text = _formatter.convert_field(value, conversion)
                    value = same_everywhere(text, type(value))
                yield written(value, spec or "")


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
            raise ValueError(f"{self!r} cannot be filled: no {error}") from error
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
        raise TypeError("a lock's name has at least one part")
    text = ":".join(map(written, parts))
    if 0 < len(text) <= LONGEST_NAME_CHARACTERS:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{text[: LONGEST_NAME_CHARACTERS - 34]}%x{digest}"


def digest_name(prefix: str, arguments: Mapping[str, Any]) -> str:
    """Return ``prefix``, a colon, and a digest of the arguments.

    The digest is the same in every process, and the same for the arguments of the call and for
    those of its message. Raises `TypeError` if an argument has no form that allows that.
    """
    try:
        digest = digest_of(arguments)
    except TypeError as error:
        raise TypeError(
            f"no name can be made of the arguments of {prefix}: {error}; give it a lock_name"
        ) from error
    return f"{quoted(prefix)[: LONGEST_NAME_CHARACTERS - len(digest) - 1]}:{digest}"


def check_argument(what: str, name: str, signature: inspect.Signature) -> None:
    """Raise `ValueError` if ``name``, which ``what`` names, is no argument of a call."""
    parameter = signature.parameters.get(name)
    if parameter is not None and parameter.kind is parameter.VAR_KEYWORD:
        raise ValueError(f"{what} names {name!r}: name one of the arguments that ** takes up")
    anything = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    if parameter is None and not anything:
        known = ", ".join(signature.parameters) or "none"
        raise ValueError(
            f"{what} names the argument {name!r}, and there is no such parameter "
            f"(there are: {known})"
        )


def _root(field: str) -> str:
    for at, character in enumerate(field):
        if character in ".[":
            return field[:at]
    return field
