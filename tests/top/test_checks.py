"""System checks: what the settings show, and what a live server says of itself."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import checks
from django.core.checks import registry, run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test.utils import override_settings

from django_tasklock import InvalidLockConfig, StoreUnavailable
from django_tasklock.conf import StoreSettings
from django_tasklock.stores.base import Finding
from tests import needs
from tests.conftest import UseCaches, UseRedis
from tests.five_methods import FiveMethodStore
from tests.servers import NoRedis, RedisServer, own_redis
from tests.store_cases import own_prefix, redis_cache
from tests.tenants import MAKE_KEY, MAKE_KEY_OF_TENANT, MAKE_NEW_KEY, tenant

BACKENDS = "django.core.cache.backends"


def found(*, deploy: bool = False) -> list[checks.CheckMessage]:
    return list(run_checks(tags=["tasklock"], include_deployment_checks=deploy))


def ids(*, deploy: bool = False) -> list[str | None]:
    return [message.id for message in found(deploy=deploy)]


def test_nothing_to_say_of_redis(use_redis: UseRedis) -> None:
    use_redis()
    assert found(deploy=True) == []


@pytest.mark.parametrize(
    ("backend", "kind", "identity"),
    [
        ("dummy.DummyCache", checks.Error, "django_tasklock.E002"),
        ("locmem.LocMemCache", checks.Warning, "django_tasklock.W001"),
        ("filebased.FileBasedCache", checks.Warning, "django_tasklock.W002"),
        ("db.DatabaseCache", checks.Warning, "django_tasklock.W007"),
    ],
)
def test_caches_that_do_not_exclude(
    use_caches: UseCaches,
    tmp_path: Any,
    backend: str,
    kind: type[checks.CheckMessage],
    identity: str,
) -> None:
    use_caches({"default": {"BACKEND": f"{BACKENDS}.{backend}", "LOCATION": str(tmp_path)}}, None)
    (message,) = found()
    assert isinstance(message, kind)
    assert message.id == identity
    assert message.hint
    assert "'default'" in message.msg


def test_each_store_is_checked(
    use_caches: UseCaches, redis_server: RedisServer, tmp_path: Any
) -> None:
    use_caches(
        {
            "default": redis_cache(redis_server.url),
            "local": {"BACKEND": f"{BACKENDS}.locmem.LocMemCache", "LOCATION": own_prefix()},
            "none": {"BACKEND": f"{BACKENDS}.dummy.DummyCache"},
        },
        {"default": {}, "a": {"CACHE": "local"}, "b": {"CACHE": "none"}},
    )
    assert ids() == ["django_tasklock.W001", "django_tasklock.E002"]


@pytest.mark.parametrize(
    ("tasklock", "said"),
    [
        ({"default": {"CACHE": "nowhere"}}, "nowhere"),
        ({"default": {"BACKEND": "no.such.Store"}}, "no.such.Store"),
        ({"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}, "DummyCache"),
        ({"default": {"TLL": 60}}, "TLL"),
        ({"default": {"TTL": 0}}, "TTL"),
        ({"default": {"OPTIONS": {"TAKEOVERR": True}}}, "TAKEOVERR"),
        ({"default": "redis"}, "default"),
        ("redis", "TASKLOCK"),
    ],
)
def test_wrong_settings_are_errors(use_redis: UseRedis, tasklock: Any, said: str) -> None:
    use_redis()
    with override_settings(TASKLOCK=tasklock):
        (message,) = found(deploy=True)
    assert isinstance(message, checks.Error)
    assert message.id == "django_tasklock.E001"
    assert said in message.msg


def test_shard_client_is_an_error(use_redis: UseRedis, redis_server: RedisServer) -> None:
    use_redis([redis_server.url], CLIENT_CLASS="django_redis.client.ShardClient")
    (message,) = found()
    assert message.id == "django_tasklock.E001"
    assert "ShardClient" in message.msg


def test_ignored_exceptions(use_redis: UseRedis) -> None:
    # On Redis the locks do not go through what ignores them, so there is something to know...
    use_redis(IGNORE_EXCEPTIONS=True)
    (message,) = found()
    assert isinstance(message, checks.Info)
    assert message.id == "django_tasklock.I001"

    # ...but through cache.add they would.
    use_redis(
        tasklock={"BACKEND": "django_tasklock.stores.cache.CacheStore"}, IGNORE_EXCEPTIONS=True
    )
    (message,) = found()
    assert isinstance(message, checks.Error)
    assert "IGNORE_EXCEPTIONS" in message.msg


def test_settings_are_checked_without_a_server(
    use_redis: UseRedis, own_redis_server: RedisServer
) -> None:
    use_redis(own_redis_server.url)
    own_redis_server.kill()
    assert found() == []


def test_server_that_does_not_answer_is_a_sentence(
    use_redis: UseRedis, own_redis_server: RedisServer
) -> None:
    use_redis(own_redis_server.url)
    own_redis_server.kill()
    (message,) = found(deploy=True)
    assert isinstance(message, checks.Warning)
    assert message.id == "django_tasklock.W003"
    assert "could not be asked" in message.msg
    assert message.msg.isprintable()


class RefusedByItsServer(FiveMethodStore):
    """A store whose settings are found wrong when its server is asked."""

    def check(self) -> list[Finding]:
        raise InvalidLockConfig("the database is on MySQL: locks need MariaDB")


class ConnectsAtOnce(FiveMethodStore):
    """A store that asks its server when it is made."""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        raise StoreUnavailable(self.alias, "connection refused")


def test_store_that_cannot_be_made_in_an_outage(use_redis: UseRedis) -> None:
    use_redis(tasklock={"BACKEND": f"{__name__}.ConnectsAtOnce"})
    assert found() == []
    (message,) = found(deploy=True)
    assert message.id == "django_tasklock.W003"
    assert "connection refused" in message.msg


def test_setting_that_the_server_shows_to_be_wrong(use_redis: UseRedis) -> None:
    """As of a DatabaseStore whose database is MySQL, or SQLite in memory."""
    use_redis(tasklock={"BACKEND": f"{__name__}.RefusedByItsServer"})
    assert found() == []
    (message,) = found(deploy=True)
    assert isinstance(message, checks.Error)
    assert message.id == "django_tasklock.E001"
    assert "MySQL" in message.msg


def test_cache_that_waits_for_ever(use_redis: UseRedis, own_redis_server: RedisServer) -> None:
    use_redis(
        own_redis_server.url,
        SOCKET_TIMEOUT=None,
        CONNECTION_POOL_KWARGS={"socket_timeout": None},
    )
    assert found() == []
    (message,) = found(deploy=True)
    assert isinstance(message, checks.Info)
    assert message.id == "django_tasklock.socket_timeout"
    assert "SOCKET_TIMEOUT" in (message.hint or "")


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_server_that_may_evict_locks(use_redis: UseRedis, policy: str) -> None:
    options = ["--maxmemory", "64mb", "--maxmemory-policy", policy]
    try:
        with own_redis(needs_own=True, options=options) as server:
            use_redis(server.url)
            assert ids() == []
            (message,) = found(deploy=True)
    except NoRedis as error:
        needs.missing(str(error))
    assert isinstance(message, checks.Warning)
    assert message.id == "django_tasklock.eviction"
    assert policy in message.msg
    assert message.hint
    assert "noeviction" in message.hint


def test_check_command_runs_them(use_caches: UseCaches) -> None:
    use_caches({"default": {"BACKEND": f"{BACKENDS}.dummy.DummyCache"}}, None)
    with pytest.raises(SystemCheckError, match="DummyCache"):
        call_command("check")
    assert "tasklock" in registry.registry.tags_available()


class TestKeysThatDependOnTheThread:
    def found_with(
        self, use_caches: UseCaches, cache: dict[str, Any], key_function: str
    ) -> checks.CheckMessage:
        use_caches({"default": cache | {"KEY_FUNCTION": key_function}}, None)
        with tenant("acme"):
            return found()[-1]

    def test_another_thread_makes_another_key(
        self, use_caches: UseCaches, redis_server: RedisServer
    ) -> None:
        message = self.found_with(use_caches, redis_cache(redis_server.url), MAKE_KEY)
        assert message.id == "django_tasklock.W008"
        assert "in another thread" in message.msg
        assert "A lease keeps its key." in str(message.hint)
        # No tenant is current here, nor in the other thread
        assert found() == []

    def test_leases_of_a_plain_cache_keep_none(self, use_caches: UseCaches) -> None:
        cache = {"BACKEND": f"{BACKENDS}.locmem.LocMemCache", "LOCATION": own_prefix()}
        message = self.found_with(use_caches, cache, MAKE_KEY)
        assert message.id == "django_tasklock.W008"
        assert "keep no key" in str(message.hint)

    def test_each_call_makes_another_key(
        self, use_caches: UseCaches, redis_server: RedisServer
    ) -> None:
        message = self.found_with(use_caches, redis_cache(redis_server.url), MAKE_NEW_KEY)
        assert message.id == "django_tasklock.W008"
        assert "excludes nobody" in message.msg

    def test_the_function_raises_where_no_tenant_is_current(
        self, use_caches: UseCaches, redis_server: RedisServer
    ) -> None:
        # A plain cache's keys are made at each call: it is as a key that differs
        plain = {"BACKEND": f"{BACKENDS}.locmem.LocMemCache", "LOCATION": own_prefix()}
        message = self.found_with(use_caches, plain, MAKE_KEY_OF_TENANT)
        assert message.id == "django_tasklock.W008"
        assert "AttributeError" in message.msg
        # A store on Redis needs keys that are the same for all tenants
        message = self.found_with(use_caches, redis_cache(redis_server.url), MAKE_KEY_OF_TENANT)
        assert message.id == "django_tasklock.E001"
        assert "must also answer in a new thread, where no tenant is current" in message.msg
