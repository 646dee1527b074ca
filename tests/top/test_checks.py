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


def test_nothing_to_say_of_redis(use_redis: UseRedis) -> None:
    use_redis()
    assert found(deploy=True) == []


@pytest.mark.parametrize(
    ("backend", "kind", "identity"),
    [
        ("dummy.DummyCache", checks.Error, "E002"),
        ("locmem.LocMemCache", checks.Warning, "W001"),
        ("filebased.FileBasedCache", checks.Warning, "W002"),
        ("db.DatabaseCache", checks.Warning, "W007"),
    ],
)
def test_caches_that_do_not_exclude(
    use_caches: UseCaches, tmp_path: Any, backend: str, kind: type[Any], identity: str
) -> None:
    use_caches({"default": {"BACKEND": f"{BACKENDS}.{backend}", "LOCATION": str(tmp_path)}}, None)
    (message,) = found()
    assert isinstance(message, kind)
    assert message.id == f"django_tasklock.{identity}"
    assert message.hint
    assert message.msg.startswith("the lock store 'default' uses the cache 'default', a ")


@pytest.mark.parametrize(
    ("tasklock", "said"),
    [({"default": {"CACHE": "nowhere"}}, "nowhere"), ("redis", "TASKLOCK is a dict")],
)
def test_wrong_settings_are_errors(use_redis: UseRedis, tasklock: Any, said: str) -> None:
    use_redis()
    with override_settings(TASKLOCK=tasklock):
        (message,) = found(deploy=True)
    assert isinstance(message, checks.Error)
    assert message.id == "django_tasklock.E001"
    assert said in message.msg


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


def test_only_a_deployment_check_asks_the_server(
    use_redis: UseRedis, own_redis_server: RedisServer
) -> None:
    use_redis(own_redis_server.url)
    own_redis_server.kill()
    assert found() == []
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


@pytest.mark.parametrize(
    ("backend", "identity", "says"),
    [
        ("ConnectsAtOnce", "django_tasklock.W003", "connection refused"),
        # As of a DatabaseStore whose database is MySQL, or SQLite in memory.
        ("RefusedByItsServer", "django_tasklock.E001", "MySQL"),
    ],
)
def test_what_is_wrong_is_said_once(
    use_redis: UseRedis, backend: str, identity: str, says: str
) -> None:
    use_redis(tasklock={"BACKEND": f"{__name__}.{backend}"})
    assert found() == []
    (message,) = found(deploy=True)
    assert message.id == identity
    assert says in message.msg


def test_server_that_may_evict_locks_and_a_cache_that_waits_for_ever(use_redis: UseRedis) -> None:
    options = ["--maxmemory", "64mb", "--maxmemory-policy", "volatile-ttl"]
    pool = {"socket_timeout": None}
    try:
        with own_redis(needs_own=True, options=options) as server:
            use_redis(server.url, SOCKET_TIMEOUT=None, CONNECTION_POOL_KWARGS=pool)
            assert found() == []
            messages = {message.id: message for message in found(deploy=True)}
    except NoRedis as error:
        needs.missing(str(error))
    evicts = messages.pop("django_tasklock.eviction")
    waits = messages.pop("django_tasklock.socket_timeout")
    assert messages == {}
    assert isinstance(evicts, checks.Warning)
    assert "volatile-ttl" in evicts.msg
    assert "noeviction" in str(evicts.hint)
    assert isinstance(waits, checks.Info)
    assert "SOCKET_TIMEOUT" in str(waits.hint)


def test_check_command_runs_them(use_caches: UseCaches) -> None:
    use_caches({"default": {"BACKEND": f"{BACKENDS}.dummy.DummyCache"}}, None)
    with pytest.raises(SystemCheckError, match="DummyCache"):
        call_command("check")
    assert "tasklock" in registry.registry.tags_available()


@pytest.mark.parametrize(
    ("plain", "key_function", "identity", "says", "hint"),
    [
        (False, MAKE_KEY, "W008", "in another thread", "A lease keeps its key."),
        (True, MAKE_KEY, "W008", "in another thread", "keep no key"),
        (False, MAKE_NEW_KEY, "W008", "excludes nobody", "None"),
        # It raises where no tenant is current. A plain cache's keys are made at each call.
        (True, MAKE_KEY_OF_TENANT, "W008", "AttributeError", "keep no key"),
        (False, MAKE_KEY_OF_TENANT, "E001", "must also answer in a new thread", "None"),
    ],
)
def test_keys_that_depend_on_the_thread(
    use_caches: UseCaches, redis_server: RedisServer, plain: bool, key_function: str, identity: str,
    says: str, hint: str,
) -> None:  # fmt: skip
    locmem = {"BACKEND": f"{BACKENDS}.locmem.LocMemCache", "LOCATION": own_prefix()}
    cache = locmem if plain else redis_cache(redis_server.url)
    use_caches({"default": cache | {"KEY_FUNCTION": key_function}}, None)
    with tenant("acme"):
        message = found()[-1]
    assert message.id == f"django_tasklock.{identity}"
    assert says in message.msg
    assert hint in str(message.hint)
