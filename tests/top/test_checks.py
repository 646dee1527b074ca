"""System checks: what the settings show, and what a live server says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
from django.core import checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test.utils import override_settings

from django_tasklock import InvalidLockConfig
from django_tasklock.stores.base import Finding
from django_tasklock.stores.memory import MemoryStore
from tests.conftest import UseCaches, UseRedis
from tests.pages import found
from tests.servers import RedisServer
from tests.store_cases import own_prefix, redis_cache
from tests.tenants import MAKE_KEY, MAKE_KEY_OF_TENANT, MAKE_NEW_KEY, tenant

BACKENDS = "django.core.cache.backends"
CACHE = {"default": {"BACKEND": "django_tasklock.stores.cache.CacheStore"}}
LEVELS = {"E": checks.ERROR, "W": checks.WARNING, "I": checks.INFO}


def the_one(identity: str, says: str, *, deploy: bool = False) -> checks.CheckMessage:
    """The only message, which has this id, its level, and this text."""
    (message,) = found(deploy=deploy)
    assert message.id == f"django_tasklock.{identity}"
    assert message.level == LEVELS[identity[0]]
    assert says in message.msg
    assert message.msg.isprintable()
    return message


@pytest.mark.parametrize(
    ("backend", "identity"),
    [
        ("dummy.DummyCache", "E002"),
        ("locmem.LocMemCache", "W001"),
        ("filebased.FileBasedCache", "W002"),
        ("db.DatabaseCache", "W007"),
    ],
)
def test_caches_that_do_not_exclude(
    use_caches: UseCaches, tmp_path: Path, backend: str, identity: str
) -> None:
    # Given a project whose cache is not one for all its processes, or loses what it is told
    use_caches({"default": {"BACKEND": f"{BACKENDS}.{backend}", "LOCATION": str(tmp_path)}}, None)

    # I expect `manage.py check` to say so, with a hint, as the page of checks has it
    says = f"the lock store 'default' uses the cache 'default', a {backend.partition('.')[2]}"
    assert the_one(identity, says).hint
    with pytest.raises(SystemCheckError, match=identity):
        call_command("check", fail_level="WARNING")


@pytest.mark.parametrize(
    ("tasklock", "options", "identity", "says"),
    [
        ({"default": {"CACHE": "nowhere"}}, {}, "E001", "nowhere"),
        ("redis", {}, "E001", "TASKLOCK must be a dict"),
        # On Redis the locks do not go through what ignores them, so there is something to know,
        ({"default": {}}, {"IGNORE_EXCEPTIONS": True}, "I001", "IGNORE_EXCEPTIONS"),
        # but through cache.add they would.
        (CACHE, {"IGNORE_EXCEPTIONS": True}, "E001", "IGNORE_EXCEPTIONS"),
    ],
)
def test_settings_that_are_wrong_or_mean_something_else(
    use_redis: UseRedis, tasklock: Any, options: dict[str, Any], identity: str, says: str
) -> None:
    use_redis()
    assert found(deploy=True) == []
    use_redis(**options)
    with override_settings(TASKLOCK=tasklock):
        the_one(identity, says, deploy=True)


class RefusedByItsServer(MemoryStore):
    """A store whose settings are found wrong when its server is asked."""

    def check(self) -> list[Finding]:
        raise InvalidLockConfig("the database is on MySQL: locks need MariaDB")


@pytest.mark.parametrize(
    ("backend", "identity", "says"),
    [
        ("django_tasklock.stores.redis.RedisStore", "W003", "could not be asked"),
        (f"{__name__}.RefusedByItsServer", "E001", "MySQL"),
    ],
)
def test_only_a_deployment_check_asks_the_server(
    use_redis: UseRedis, own_redis_server: RedisServer, backend: str, identity: str, says: str
) -> None:
    use_redis(own_redis_server.url, tasklock={"BACKEND": backend})
    own_redis_server.kill()
    assert found() == []
    the_one(identity, says, deploy=True)


def test_a_server_that_may_evict_locks(use_redis: UseRedis, own_redis_server: RedisServer) -> None:
    client: Any = redis.Redis.from_url(own_redis_server.url)
    client.config_set("maxmemory", "64mb")
    client.config_set("maxmemory-policy", "volatile-ttl")
    use_redis(own_redis_server.url)
    assert found() == []
    (evicts,) = found(deploy=True)
    assert (evicts.id, evicts.level) == ("django_tasklock.eviction", checks.WARNING)
    assert "volatile-ttl" in evicts.msg


@pytest.mark.parametrize(
    ("plain", "key_function", "identity", "says", "hint"),
    [
        (False, MAKE_KEY, "W008", "in another thread", "A lease keeps its key."),
        (True, MAKE_KEY, "W008", "in another thread", "keep no key"),
        (False, MAKE_NEW_KEY, "W008", "excludes nobody", "one key for one name."),
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
