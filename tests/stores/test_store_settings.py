"""Settings that a store cannot work with are refused, with the reason, before it is asked."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.test.utils import override_settings

from django_tasklock import InvalidLockConfig, locks
from django_tasklock import stores as stores_module
from django_tasklock.conf import StoreSettings, configured_stores
from django_tasklock.stores import stores
from django_tasklock.stores.cluster import RedisClusterStore
from django_tasklock.stores.memory import MemoryStore
from tests.conftest import UseCaches, database_alias
from tests.quorum import LOCMEM
from tests.steps import LONG, Meanwhile, in_child
from tests.store_cases import MEMORY_STORE, database_store, zookeeper_store
from tests.waiting import PATIENCE

CLUSTER = "django_tasklock.stores.cluster.RedisClusterStore"
URL = "redis://127.0.0.1:1"
QUORUM = "django_tasklock.stores.quorum.QuorumStore"

WRONG: dict[str, tuple[dict[str, Any], list[tuple[dict[str, Any], str]]]] = {
    CLUSTER: (
        {"LOCATION": URL},
        [
            ({"LOCATION": None}, "LOCATION must be the URL of a node"),
            ({"LOCATION": []}, "LOCATION must be the URL of a node"),
            ({"LOCATION": 7000}, "LOCATION must be the URL of a node"),
            ({"LOCATION": "127.0.0.1:7000"}, "such as redis://host:7000"),
            ({"LOCATION": "unix:///run/redis"}, "such as redis://host:7000"),
            ({"LOCATION": "redis://host:port"}, "such as redis://host:7000"),
            ({"LOCATION": [None]}, "such as redis://host:7000"),
            ({"LOCATION": f"{URL}/3"}, "such as redis://host:7000"),
            ({"LOCATION": [URL, "rediss://127.0.0.1:2"]}, "the same scheme"),
            ({"LOCATION": [URL, "redis://:secret@127.0.0.1:2"]}, "the same scheme"),
            ({"CONNECTION_POOL_KWARGS": 3}, "_KWARGS must be a dict"),
            ({"CONNECTION_POOL_KWARGS": {"nope": 3}}, "nope"),
            ({"SOCKET_TIMEOUT": 0}, "SOCKET_TIMEOUT"),
            ({"REPLICAS": -1}, "REPLICAS"),
            ({"LOCATIONS": URL}, "no option LOCATIONS"),
            *(({"KEY_PREFIX": prefix}, "no braces") for prefix in ("{lock}", "a}", "{")),
        ],
    ),
    database_store("default")["BACKEND"]: (
        {"DATABASE": "default"},
        [
            ({"DATABASE": "none"}, "none"),
            ({"DATABASE": 5}, "DATABASE"),
            ({"TIMEOUT": 0}, "TIMEOUT"),
            ({"TIMEOUT": "5"}, "TIMEOUT"),
            ({"MAX_CONNECTIONS": 5}, "MAX_CONNECTIONS"),
            ({"KEY_PREFIX": "p" * 35}, "34"),
        ],
    ),
    QUORUM: (
        {"STORES": ["a", "b", "c"]},
        [
            ({"STORES": "abc"}, "STORES must be a list of aliases"),
            ({"STORES": [1, 2, 3]}, "there is no lock store 1"),
            ({"STORES": ["a"]}, "odd number of stores, at least 3"),
            ({"STORES": ["a", "b", "c", "d"]}, "an odd number of stores"),
            ({"STORES": ["a", "b", "b"]}, "none twice"),
            ({"STORES": ["a", "b", "x"]}, "there is no lock store 'x'"),
            ({"STORES": ["a", "b", "other"]}, "its member 'other' must not be a quorum"),
            ({"TIMEOUT": 0}, "TIMEOUT must be a number of seconds from 0.001 to ten years, not 0"),
            ({"LONGEST_TTL": "1h"}, "LONGEST_TTL must be a number of seconds, not str: '1h'"),
            ({"LONGEST_TTL": 30}, "its TTL must be at most 30 s .*not 60 s"),
            ({"QUORUM": 2}, "has no option QUORUM"),
        ],
    ),
    zookeeper_store("")["BACKEND"]: (
        {"HOSTS": "h"},
        [
            ({"HOSTS": None}, "HOSTS"),
            ({"HOSTS": "127.0.0.1:port"}, "HOSTS"),
            ({"AUTH": "digest"}, "AUTH"),
            ({"AUTH": [("digest", "us:secret", "")]}, "AUTH"),
            ({"TIMEOUT": 0}, "TIMEOUT"),
            ({"HOST": "h"}, "HOST"),
            *(
                ({"KEY_PREFIX": prefix}, "KEY_PREFIX")
                for prefix in ("", "/", "a//b", "a/../b", ".", "zookeeper/x", "a\tb")
            ),
        ],
    ),
}
"""for each store its options that would do, and what is wrong with others"""


@pytest.mark.parametrize(
    ("backend", "given", "says"),
    [
        pytest.param(backend, right | wrong, says, id=f"{backend.rpartition('.')[2]}-{wrong}")
        for backend, (right, cases) in WRONG.items()
        for wrong, says in cases
    ],
)
def test_wrong_ones_are_refused(
    use_caches: UseCaches, backend: str, given: dict[str, Any], says: str
) -> None:
    # Given an option, or a KEY_PREFIX, that is wrong; an option that is None is not there
    prefix = {"KEY_PREFIX": given.pop("KEY_PREFIX")} if "KEY_PREFIX" in given else {}
    options = {option: value for option, value in given.items() if value is not None}
    other = {"BACKEND": QUORUM, "OPTIONS": {"STORES": ["a", "default", "b"]}}
    use_caches(
        {"default": LOCMEM},
        {"default": {"BACKEND": backend, "OPTIONS": options} | prefix, "other": other}
        | {alias: {"BACKEND": MEMORY_STORE} for alias in "abcd"},
    )

    # I expect an error that says what is wrong
    with pytest.raises(InvalidLockConfig, match=says) as raised:
        _ = stores["default"]

    # And no secret
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("name", [None, ":memory:", "file:locks?mode=memory&cache=shared"])
def test_a_database_that_cannot_keep_locks(use_caches: UseCaches, name: str | None) -> None:
    engine = f"django.db.backends.{'sqlite3' if name else 'dummy'}"
    with database_alias("other", {"ENGINE": engine, "NAME": name or ""}):
        use_caches({}, {"default": database_store("other")})
        with pytest.raises(InvalidLockConfig, match="in tests as TEST"):
            locks.acquire("video:1", ttl=LONG)


def test_right_ones_of_a_cluster_are_taken_without_a_server(use_caches: UseCaches) -> None:
    options = {
        "LOCATION": ["rediss://u%40x:p%2Fw@127.0.0.1:1", "rediss://u%40x:p%2Fw@[::1]"],
        "CONNECTION_POOL_KWARGS": {"ssl_cert_reqs": "none", "max_connections": 3},
        "SOCKET_TIMEOUT": 0.5, "TAKEOVER": False, "REPLICAS": 1,
    }  # fmt: skip
    use_caches({}, {"default": {"BACKEND": CLUSTER, "KEY_PREFIX": "", "OPTIONS": options}})
    store = stores["default"]
    assert isinstance(store, RedisClusterStore)
    connection = store.buckets[3].client.new_connection()
    assert (connection.username, connection.password) == ("u@x", "p/w")
    assert connection.socket_timeout == 0.5
    assert not store.uses_cache
    assert store.key("a").endswith("}:a")


class SlowStore(MemoryStore):
    """A store that two threads are always about to make at the same time."""

    both = threading.Barrier(2, timeout=PATIENCE)

    def __init__(self, settings: StoreSettings) -> None:
        self.both.wait()
        super().__init__(settings)


SLOW = {"default": {"BACKEND": f"{__name__}.SlowStore"}}


def test_threads_that_make_a_store_at_the_same_time_get_the_same_one() -> None:
    with override_settings(TASKLOCK=SLOW):
        makers = [Meanwhile(lambda: stores["default"]) for _ in range(2)]
        assert {maker.result() for maker in makers} == {stores["default"]}


@pytest.mark.usefixtures("on_redis", "each_fork")
def test_a_child_that_is_forked_while_a_thread_reads_the_settings_reads_them_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads, go_on = threading.Event(), threading.Event()

    def slowly() -> dict[str, StoreSettings]:
        if not reads.is_set():
            reads.set()
            go_on.wait(PATIENCE)
        return configured_stores()

    monkeypatch.setattr(stores_module, "configured_stores", slowly)
    stores.forget()
    reader = Meanwhile(lambda: locks.is_locked("video:1"))
    assert reads.wait(PATIENCE)
    assert in_child(lambda: locks.is_locked("video:1")) is False
    go_on.set()
    assert reader.result() is False
