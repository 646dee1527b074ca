"""What the store on a cluster needs: its options, TLS and passwords, and rights."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from io import StringIO
from typing import Any
from urllib.parse import quote

import pytest
from django.core.management import call_command

from django_tasklock import InvalidLockConfig, StoreUnavailable, locks
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore
from django_tasklock.stores.cluster import RedisClusterStore
from tests import needs
from tests.clusters import PATIENT_MS, Cluster, require_cluster_server
from tests.conftest import UseCaches
from tests.servers import NoRedis, RedisServer
from tests.steps import LONG, taken
from tests.store_cases import own_prefix, redis_cache
from tests.tls import Tls

BACKEND = "django_tasklock.stores.cluster.RedisClusterStore"
URL = "redis://127.0.0.1:1"
PASSWORD = "s3cret/&"


def made(use_caches: UseCaches, prefix: str = "lock", **options: Any) -> BaseStore:
    use_caches({}, {"default": {"BACKEND": BACKEND, "KEY_PREFIX": prefix, "OPTIONS": options}})
    return stores["default"]


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({}, "LOCATION must be the URL of a node"),
            ({"LOCATION": []}, "LOCATION must be the URL of a node"),
            ({"LOCATION": 7000}, "LOCATION must be the URL of a node"),
            ({"LOCATION": "127.0.0.1:7000"}, "such as redis://host:7000"),
            ({"LOCATION": "unix:///run/redis"}, "such as redis://host:7000"),
            ({"LOCATION": "redis://host:port"}, "such as redis://host:7000"),
            ({"LOCATION": [None]}, "such as redis://host:7000"),
            ({"LOCATION": f"{URL}/3"}, "such as redis://host:7000"),
            ({"LOCATION": [URL, "rediss://127.0.0.1:2"]}, "the same scheme"),
            ({"LOCATION": [URL, "redis://:secret@127.0.0.1:2"]}, "the same scheme"),
            ({"LOCATION": URL, "CONNECTION_POOL_KWARGS": 3}, "_KWARGS must be a dict"),
            ({"LOCATION": URL, "CONNECTION_POOL_KWARGS": {"nope": 3}}, "nope"),
            ({"LOCATION": URL, "SOCKET_TIMEOUT": 0}, "SOCKET_TIMEOUT"),
            ({"LOCATION": URL, "REPLICAS": 0}, "REPLICAS"),
            ({"LOCATION": URL, "LOCATIONS": URL}, "no option LOCATIONS"),
        ],
    )
    def test_wrong_ones_are_refused_before_anything_is_sent(
        self, use_caches: UseCaches, options: dict[str, Any], reason: str
    ) -> None:
        with pytest.raises(InvalidLockConfig, match=reason) as raised:
            made(use_caches, **options)
        assert "secret" not in str(raised.value)

    @pytest.mark.parametrize("prefix", ["{lock}", "a}", "{"])
    def test_a_prefix_with_braces_is_refused(self, use_caches: UseCaches, prefix: str) -> None:
        with pytest.raises(InvalidLockConfig, match="no braces"):
            made(use_caches, prefix, LOCATION=URL)

    def test_right_ones_are_taken_without_a_server(self, use_caches: UseCaches) -> None:
        store = made(
            use_caches, "",
            LOCATION=["rediss://u%40x:p%2Fw@127.0.0.1:1", "rediss://u%40x:p%2Fw@[::1]"],
            CONNECTION_POOL_KWARGS={"ssl_cert_reqs": "none", "max_connections": 3},
            SOCKET_TIMEOUT=0.5, TAKEOVER=False, REPLICAS=1,
        )  # fmt: skip
        assert isinstance(store, RedisClusterStore)
        connection = store.buckets[3].client.new_connection()
        assert (connection.username, connection.password) == ("u@x", "p/w")
        assert connection.socket_timeout == 0.5
        assert not store.uses_cache
        assert store.key("a").endswith("}:a")

    def test_one_url_is_enough(self, use_caches: UseCaches, redis_cluster: Cluster) -> None:
        made(use_caches, own_prefix(), LOCATION=redis_cluster.nodes[4].url)
        for number in range(10):
            assert taken(f"video:{number}").release()


@pytest.mark.nightly
class TestServers:
    def test_a_server_that_is_no_cluster_is_named(
        self, use_caches: UseCaches, redis_server: RedisServer
    ) -> None:
        made(use_caches, LOCATION=f"redis://127.0.0.1:{redis_server.port}")
        with pytest.raises(StoreUnavailable, match="cluster support disabled"):
            locks.acquire("video:1")


def test_a_cluster_under_the_plain_store_is_named(use_caches: UseCaches) -> None:
    """By its checks too, which take a lock with all its keys: one master takes any single key."""
    require_cluster_server()
    with Cluster.own(1, 0, timeout_ms=PATIENT_MS) as cluster:
        use_caches({"default": redis_cache(cluster.nodes[0].url)}, None)
        with pytest.raises(StoreUnavailable, match=r"is a Redis Cluster.* RedisClusterStore"):
            locks.acquire("video:1")
        (finding,) = stores["default"].check()
    assert finding.id == "write"
    assert "RedisClusterStore" in finding.message


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require_cluster_server()
    if shutil.which("openssl") is None:
        needs.missing("openssl is not installed")
    tls = Tls.made_in(tmp_path_factory.mktemp("tls"))
    try:
        with Cluster.own(2, 0, tls=tls, password=PASSWORD, timeout_ms=PATIENT_MS) as cluster:
            yield cluster
    except NoRedis as error:
        if "tls" in str(error).lower():
            pytest.skip("this redis-server was built without TLS")
        needs.missing(str(error))


@pytest.mark.nightly
class TestTlsAndPasswords:
    def test_locks_are_taken_and_listed(self, closed: Cluster, use_caches: UseCaches) -> None:
        use_caches({}, {"default": closed.settings() | {"KEY_PREFIX": own_prefix()}})
        for number in range(6):
            assert taken(f"video:{number}").extend(ttl=LONG)
        assert locks.count() == 6
        assert len(locks.list()) == 6

    def test_without_the_password_it_is_an_outage(
        self, closed: Cluster, use_caches: UseCaches
    ) -> None:
        settings = closed.settings()
        locations = settings["OPTIONS"]["LOCATION"]
        settings["OPTIONS"]["LOCATION"] = [
            each.replace(quote(PASSWORD, safe=""), "wrong") for each in locations
        ]
        use_caches({}, {"default": settings})
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"(?i)password|auth"):
            locks.acquire("video:1")
        assert time.monotonic() < began + 4, "it asked again, as where the cluster changes"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    with Cluster.own(2, 0, timeout_ms=PATIENT_MS) as cluster:
        yield cluster


@pytest.mark.nightly
class TestRights:
    def use(self, cluster: Cluster, use_caches: UseCaches, *rules: str) -> None:
        for node in cluster.nodes:
            node.run("ACL", "SETUSER", "worker", "reset", "on", ">secret", *rules)
            node.run("FLUSHALL")
        location = [f"redis://worker:secret@127.0.0.1:{node.port}" for node in cluster.nodes]
        made(use_caches, LOCATION=location)

    def test_those_that_are_named_are_enough(self, guarded: Cluster, use_caches: UseCaches) -> None:
        rights = "~lock:* +@read +@write +@scripting +@connection +info +time"
        self.use(guarded, use_caches, *rights.split(), "+cluster|slots")
        lease = taken("video:1")
        assert lease.extend(ttl=LONG)
        assert lease.release()
        taken("video:1")
        assert [info.name for info in locks.list()] == ["video:1"]
        assert locks.clear("video:1")
        out = StringIO()
        call_command("locks", "doctor", stdout=out)
        assert "no replica" in out.getvalue()

    @pytest.mark.parametrize("missing", [["-cluster"], ["-@scripting"], ["resetkeys", "~other:*"]])
    def test_one_that_is_missing_is_an_error_with_the_mend_in_it(
        self, guarded: Cluster, use_caches: UseCaches, missing: list[str]
    ) -> None:
        self.use(guarded, use_caches, "~*", "+@all", *missing)
        with pytest.raises(StoreUnavailable, match=r"lacks a right.*it needs"):
            locks.acquire("video:1")
