"""The options of `ZooKeeperStore`, checked without kazoo and without network."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...conf import StoreSettings
from ...exceptions import InvalidLockConfig

__all__ = ["OPTIONS", "Options", "options_of"]

TLS = {
    "USE_SSL": bool, "CA": str, "CERTFILE": str, "KEYFILE": str, "KEYFILE_PASSWORD": str,
    "VERIFY_CERTS": bool, "CHECK_HOSTNAME": bool,
}  # fmt: skip
"""passed on to kazoo's client under the same names"""
OPTIONS = frozenset({"HOSTS", "AUTH", "SESSION_TIMEOUT", "TIMEOUT", *TLS})
DEFAULT_SESSION_SECONDS = 10.0
DEFAULT_SECONDS = 5.0


@dataclass(frozen=True)
class Options:
    """What OPTIONS and KEY_PREFIX say.

    ``prefix`` is the path below which everything is; ``auth`` are pairs of a scheme and a
    credential; ``session_seconds`` is the session timeout to ask for; ``seconds`` is how long a
    call may take; ``tls`` are arguments of kazoo's client.
    """

    hosts: str
    prefix: str
    auth: tuple[tuple[str, str], ...]
    session_seconds: float
    seconds: float
    tls: Mapping[str, Any]


def options_of(settings: StoreSettings) -> Options:
    """Raises `InvalidLockConfig`."""
    given, store = settings.options, f"of the lock store {settings.alias!r}"
    hosts = given.get("HOSTS")
    if not isinstance(hosts, str) or not hosts.strip():
        raise InvalidLockConfig(
            f'the option HOSTS {store} is a text such as "10.0.0.1:2181,10.0.0.2:2181/chroot", '
            f"not {hosts!r}"
        )
    auth = given.get("AUTH", ())
    if not isinstance(auth, (list, tuple)) or not all(
        isinstance(pair, (list, tuple)) and [type(text) for text in pair] == [str, str]
        for pair in auth
    ):
        # Without the value: it is a password.
        raise InvalidLockConfig(
            f'the option AUTH {store} is a list of pairs such as ("digest", "user:password")'
        )
    for option, kind in TLS.items():
        if option in given and not isinstance(given[option], kind):
            raise InvalidLockConfig(
                f"the option {option} {store} is of type {kind.__name__}, not "
                f"{type(given[option]).__name__}"
            )
    _assert_threads(settings.alias)
    return Options(
        hosts,
        _prefix(settings),
        tuple((scheme, credential) for scheme, credential in auth),
        _seconds(settings, "SESSION_TIMEOUT", DEFAULT_SESSION_SECONDS),
        _seconds(settings, "TIMEOUT", DEFAULT_SECONDS),
        {option.lower(): given[option] for option in TLS if option in given},
    )


def _seconds(settings: StoreSettings, option: str, default: float) -> float:
    value = settings.options.get(option, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 86400:
        raise InvalidLockConfig(
            f"the option {option} of the lock store {settings.alias!r} is a number of seconds, "
            f"more than 0 and less than a day, not {value!r}"
        )
    return float(value)


def _prefix(settings: StoreSettings) -> str:
    parts = settings.key_prefix.strip("/").split("/")
    if any(part in ("", ".", "..") or not part.isprintable() for part in parts):
        raise InvalidLockConfig(
            f"the KEY_PREFIX of the lock store {settings.alias!r} is the path of the node below "
            f'which its locks are, such as "lock" or "shop/locks", not {settings.key_prefix!r}'
        )
    if parts[0] == "zookeeper":
        raise InvalidLockConfig(
            f"the KEY_PREFIX of the lock store {settings.alias!r} is not below /zookeeper, which "
            "is ZooKeeper's own"
        )
    return "/" + "/".join(parts)


def _assert_threads(alias: str) -> None:
    # The client's threads keep the session alive. As greenlets they would stop while another
    # greenlet computes, and every lease of the process would be lost with the session.
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if (gevent is not None and gevent.is_module_patched("threading")) or (
        eventlet is not None and eventlet.is_monkey_patched("thread")
    ):
        raise InvalidLockConfig(
            f"the lock store {alias!r} is a ZooKeeperStore, which works with threads and "
            "processes, and not in a process that gevent or eventlet has patched"
        )
