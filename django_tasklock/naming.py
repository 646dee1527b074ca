"""A lock's name from the arguments of a call."""

from __future__ import annotations

import hashlib
import inspect
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .arguments import LONGEST_NAME, checked_name
from .exceptions import InvalidLockConfig
from .forms import digest_of, quoted, same_everywhere, written

__all__ = [
    "ArgumentNames",
    "Binder",
    "NameTemplate",
    "bound_arguments",
    "by",
    "digest_name",
    "make_name",
    "quoted",
]


class _Formatter(string.Formatter):
    """Reads an attribute of a mapping as its item: what was a model when the task was sent may
    be a dict where it runs."""

    def get_field(self, field: str, args: Any, arguments: Any) -> Any:
        root, _, rest = field.partition(".")
        if rest and "[" not in field:
            value = arguments[root]
            for part in rest.split("."):
                value = value[part] if isinstance(value, Mapping) else getattr(value, part)
            return value, root
        return super().get_field(field, args, arguments)


_formatter = _Formatter()


def bound_arguments(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments by name, with defaults, however they were passed.

    What a ``**kwargs`` parameter takes up stands beside the named ones. Raises `TypeError`,
    as the call itself would.
    """
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments = {**arguments.pop(parameter.name), **arguments}
    return arguments


class Binder:
    """`bound_arguments` of one signature: at once, where it is plain and the call is in order.

    What `inspect.Signature.bind` does takes as long as the whole way to the store and back.
    """

    def __init__(self, signature: inspect.Signature) -> None:
        self.signature = signature
        parameters = signature.parameters.values()
        self._plain = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
        self._names = tuple(signature.parameters)
        self._required = {p.name for p in parameters if p.default is p.empty}
        # In the signature's order, as the arguments are to stand.
        self._blank = {p.name: p.default for p in parameters}

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Raises `TypeError`, as the call itself would."""
        names = self._names
        if self._plain and len(args) <= len(names) and kwargs.keys().isdisjoint(names[: len(args)]):
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            arguments = {**self._blank, **given}
            if self._required <= given.keys() and len(arguments) == len(names):
                return arguments
        return bound_arguments(self.signature, args, kwargs)


class NameTemplate:
    """A name with fields in braces, as of `str.format`: ``"video:{video_id}"``.

    Fields name parameters of the call, with attributes, items and format specs where wanted
    (``{day:%Y-%m-%d}``, ``{order.pk}``). A value stands there as `written` has it: a scalar as
    its text, what has parts as a digest of them; with a conversion (``{x!r}``) it is the text
    that Python makes, which of a dict has the order of its keys. Raises `ValueError` for a field
    that no parameter has, and for a template that could never make a name.
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
            _check_argument(repr(template), name, signature)
        if literals or self.constant:
            checked_name(literals)

    def fill(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The name for one call. Raises `TypeError` or `ValueError` if there is none."""
        if self.constant:
            return checked_name(self.template.format())
        return self.fill_from(self._bind(args, kwargs))

    def fill_from(self, arguments: Mapping[str, Any]) -> str:
        """`fill`, from a call's arguments by name."""
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
                if value is _formatter:  # An attribute or an item of one.
                    value, _ = _formatter.get_field(field, (), arguments)
                if conversion:
                    text = _formatter.convert_field(value, conversion)
                    value = same_everywhere(text, type(value))
                yield written(value, spec or "")


class ArgumentNames:
    """A chosen subset of a call's arguments: what `by` returns."""

    def __init__(self, *names: str) -> None:
        if not names or not all(isinstance(name, str) for name in names):
            raise InvalidLockConfig(f"by() takes the names of arguments, not {names!r}")
        self.names = names

    def __repr__(self) -> str:
        return f"by({', '.join(map(repr, self.names))})"

    def check(self, signature: inspect.Signature) -> None:
        """Raises `ValueError` for a name that is no argument of the call."""
        for name in self.names:
            _check_argument(repr(self), name, signature)

    def name_from(self, prefix: str, arguments: Mapping[str, Any]) -> str:
        """The name for one call. Raises `TypeError` or `ValueError` if there is none."""
        try:
            values = [arguments[name] for name in self.names]
        except KeyError as error:
            raise ValueError(f"{self!r} cannot be filled: no {error}") from error
        return make_name(prefix, *values)


def by(*names: str) -> ArgumentNames:
    """For ``lock_name``: the task's name and these of its arguments, as `make_name` joins them.

    ``lock_name=by("user_id", "kind")``: other arguments make no difference. That there are such
    arguments is checked when the task is defined. Raises `InvalidLockConfig`.
    """
    return ArgumentNames(*names)


def make_name(*parts: Any) -> str:
    """A valid name for a lock, made of anything: ``make_name("order", order.pk, "a b")`` is
    ``"order:7:a%20b"``.

    Parts are quoted, so that ("a:b", "c") and ("a", "b:c") never meet, and a name that would be
    too long is cut and ends with ``%x`` and a digest of the whole. Scalars stand there as their
    text, so 7 and "7" are one, as in a template; 1, 1.0 and True are three. An enum's member
    stands for its value, a model's instance is its label and primary key; of a dict, list, tuple,
    set, dataclass or pydantic model it is a digest, whatever the order of keys.

    Raises `TypeError` without parts, and for a part without a form that is the same in every
    process, such as an object whose text is its address in memory.
    """
    if not parts:
        raise TypeError("a lock's name has at least one part")
    text = ":".join(map(written, parts))
    if 0 < len(text) <= LONGEST_NAME:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{text[: LONGEST_NAME - 34]}%x{digest}"


def digest_name(prefix: str, arguments: Mapping[str, Any]) -> str:
    """``prefix``, a colon, and a digest of the arguments that is the same in every process.

    It is the same before and after the way through a message. Raises `TypeError` if an argument
    has no such form.
    """
    try:
        digest = digest_of(arguments)
    except TypeError as error:
        raise TypeError(
            f"no name can be made of the arguments of {prefix}: {error}; give it a lock_name"
        ) from error
    return f"{quoted(prefix)[: LONGEST_NAME - len(digest) - 1]}:{digest}"


def _check_argument(what: str, name: str, signature: inspect.Signature) -> None:
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
