"""The settings TASKLOCK and TASKLOCK_TASK_URL: read live, and wrong values said at once.

The system checks: what the settings show, and what a live server says of itself.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from django.core.cache import cache, caches
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test.utils import override_settings
from django_redis.cache import RedisCache

from django_tasklock import InvalidLockConfig, lock, locks
from django_tasklock.checks import check_stores
from django_tasklock.conf import StoreSettings, task_url
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore, Finding
from django_tasklock.stores.cache import CacheStore
from django_tasklock.stores.memory import MemoryStore
from django_tasklock.stores.redis import RedisStore
from tests.conftest import UseCaches, UseRedis
from tests.pages import found
from tests.servers import RedisServer
from tests.steps import holder, taken
from tests.store_cases import own_prefix, redis_cache
from tests.tenants import MAKE_KEY, MAKE_KEY_OF_TENANT, MAKE_NEW_KEY, tenant

OURS = "django_tasklock.stores"
REDIS = f"{OURS}.redis.RedisStore"


@pytest.fixture(autouse=True)
def two_caches(use_caches: UseCaches, redis_server: RedisServer) -> None:
    locmem = "django.core.cache.backends.locmem.LocMemCache"
    memory = {"BACKEND": locmem, "LOCATION": own_prefix()}
    use_caches({"default": redis_cache(redis_server.url), "memory": memory})


class OurRedis(RedisCache):  # type: ignore[misc]
    """A cache class of a team's own."""


class HalfStore(BaseStore):
    """A store that somebody is writing."""


class OptionStore(MemoryStore):
    """A store that names its own option, and not those of its base."""

    known_options = frozenset({"FILE"})

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self.file = settings.options["FILE"]


OWN = f"{__name__}.OptionStore"


def test_without_the_setting_it_is_the_default_cache() -> None:
    # Given a project that has CACHES, and says nothing of locks
    assert list(stores) == ["default"]

    # I expect its locks to be in the default cache, under "lock:", and to last for a minute
    lease = taken("video:1", ttl=None)
    assert lease.ttl == 60
    assert lease.token in cache.get("lock:video:1")
    assert holder("video:1").key == caches["default"].make_key("lock:video:1")


def test_a_change_is_seen_at_once_and_a_lease_keeps_its_store_and_its_key() -> None:
    made = lock("video:2")
    with override_settings(TASKLOCK={"default": {"TTL": 5, "KEY_PREFIX": "a"}}):
        lease = taken("video:1", ttl=None)
        assert lease.token in cache.get("a:video:1")
        with override_settings(TASKLOCK={"default": {"TTL": 7.5, "KEY_PREFIX": "b"}}):
            assert taken("video:1", ttl=None).ttl == 7.5
        assert locks.acquire("video:1") is None
        with made as other:
            assert other.ttl == lease.ttl == 5
    assert lease.extend()
    assert lease.release()


def test_the_backend_is_the_one_that_is_named_or_chosen_by_the_caches_class() -> None:
    own = {"BACKEND": OWN, "OPTIONS": {"FILE": "locks", "TAKEOVER": False}}
    ours = caches.settings["default"] | {"BACKEND": f"{__name__}.OurRedis"}
    tasklock = {"default": {}, "memory": {"CACHE": "memory"}, "own": own, "ours": {"CACHE": "ours"}}
    with override_settings(CACHES=caches.settings | {"ours": ours}, TASKLOCK=tasklock):
        kinds = [RedisStore, CacheStore, OptionStore, RedisStore]
        assert [type(stores[alias]) for alias in tasklock] == kinds
        assert stores["default"] is stores["default"]
        assert stores["own"].takeover is False, "an option of every store"


@pytest.mark.parametrize(
    ("tasklock", "says"),
    [
        ([], "TASKLOCK must be a dict"),
        ({"default": []}, r"TASKLOCK\['default'\] must be a dict"),
        ({"default": {"CACHES": "x"}}, "no setting CACHES; there are BACKEND, CACHE"),
        ({"default": {"TTL": "60"}}, r"\['TTL'\]: ttl must be a number of seconds, not str"),
        ({"default": {"KEY_PREFIX": None}}, r"\['KEY_PREFIX'\] must be a str"),
        ({"default": {"BACKEND": RedisStore}}, r"\['BACKEND'\] must be the dotted path"),
        ({"default": {"BACKEND": "nowhere.Store"}}, "'nowhere.Store'.* No module named 'nowhere'"),
        (
            {"default": {"BACKEND": "django_tasklock._engine.lease.Lease"}},
            "must be a store's class. Leave",
        ),
        ({"default": {"BACKEND": f"{__name__}.HalfStore"}}, "abstract.*get.*put"),
        ({"default": {"BACKEND": OWN}}, "be made: KeyError: 'FILE'"),
        ({"default": {"BACKEND": OWN, "OPTIONS": {"PATH": "x"}}}, "there are FILE, TAKEOVER"),
        # Where the backend is named, nothing has looked at the cache before.
        (
            {"default": {"BACKEND": REDIS, "CACHE": "nope"}},
            "the CACHE 'nope'.*CACHES has 'default'",
        ),
        ({"default": {"BACKEND": REDIS, "CACHE": "memory"}}, "django-redis.* a LocMemCache"),
        ({"default": {"OPTIONS": {"TAKEOVER": "no"}}}, "TAKEOVER.*must be a bool"),
        ({"default": {"OPTIONS": {"SOCKET_TIMEOUT": 0}}}, "SOCKET_TIMEOUT.*number.*not 0"),
        ({"default": {"OPTIONS": {"HISTORY": -1}}}, "HISTORY"),
        ({"other": {}}, "no lock store 'default'; TASKLOCK has 'other'"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_when_the_store_is_asked_for(tasklock: Any, says: str) -> None:
    with override_settings(TASKLOCK=tasklock), pytest.raises(InvalidLockConfig, match=says):
        locks.acquire("video:1")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"KEY_FUNCTION": "nowhere.make_key"}, "ModuleNotFoundError: No module named 'nowhere"),
        ({"OPTIONS": {"CLIENT_CLASS": "django_redis.client.ShardClient"}}, "ShardClient"),
        ({"LOCATION": ""}, "Missing connections string"),  # a variable that is not set
        # redis-py looks at it when it makes a connection, which may be at the first lock.
        ({"LOCATION": "redis://127.0.0.1:1?no=1"}, "unexpected keyword argument 'no'"),
    ],
    ids=str,
)
def test_a_cache_that_cannot_be_used_is_a_wrong_setting(
    redis_server: RedisServer, wrong: dict[str, Any], says: str
) -> None:
    with override_settings(CACHES={"default": redis_cache(redis_server.url) | wrong}):
        with pytest.raises(InvalidLockConfig, match=says):
            locks.acquire("video:1")
        # The oldest django-redis cannot close a cache without a location.
        with suppress(AttributeError):
            del caches["default"]


def test_the_address_of_a_tasks_page_has_its_id_quoted_or_is_an_error() -> None:
    assert task_url("id") is None
    with override_settings(TASKLOCK_TASK_URL="http://127.0.0.1:5555/f/?id={task_id}&x={y}"):
        assert task_url("a/b ?#{x}") == "http://127.0.0.1:5555/f/?id=a%2Fb%20%3F%23%7Bx%7D&x={y}"
        assert task_url("\ud800ü") == "http://127.0.0.1:5555/f/?id=%3F%C3%BC&x={y}"
        assert check_stores() == []
    wrong: list[Any] = [
        "", "https://flower/task/", "javascript:alert('{task_id}')", "//flower/{task_id}",
        "https:///{task_id}", "https://{task_id}.example.com/", "https://[/{task_id}", 7,
    ]  # fmt: skip
    for template in wrong:
        with override_settings(TASKLOCK_TASK_URL=template):
            with pytest.raises(InvalidLockConfig, match="TASKLOCK_TASK_URL must be an address"):
                task_url("id")
            assert [error.id for error in check_stores()] == ["django_tasklock.E001"]


# ------------------------------------------------------------------------------ system checks

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
        # Through cache.add an outage would look like a held lock.
        (CACHE, {"IGNORE_EXCEPTIONS": True}, "E001", "IGNORE_EXCEPTIONS"),
    ],
)
def test_settings_that_are_wrong(
    use_redis: UseRedis, tasklock: Any, options: dict[str, Any], identity: str, says: str
) -> None:
    use_redis()
    assert found(deploy=True) == []
    use_redis(**options)
    with override_settings(TASKLOCK=tasklock):
        the_one(identity, says, deploy=True)


@pytest.mark.parametrize("name", ["TASKLOCK_TTL", "TASKLOCK_DEFAULT", "TASKLOCKS"])
def test_a_setting_that_nothing_reads(use_redis: UseRedis, name: str) -> None:
    use_redis()
    with override_settings(**{name: 60, "TASKLOCK_TASK_URL": "https://example.com/{task_id}"}):
        message = the_one("W012", f"nothing reads the setting {name}.")
        assert message.hint
        assert (
            'Write TASKLOCK = {"default": {...}}, with BACKEND, CACHE, KEY_PREFIX, TTL, OPTIO'
            in (message.hint)
        )
    # Also beside one that is wrong, which it may have been meant for
    with override_settings(**{name: 60, "TASKLOCK": "redis"}):
        said = [str(each.id).partition(".")[2] for each in found()]
    assert said == ["W012", "E001"]


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


@pytest.mark.parametrize(
    ("plain", "key_function", "identity", "says", "hint"),
    [
        (False, MAKE_KEY, "W008", "in another thread", "a lease keeps its key."),
        (True, MAKE_KEY, "W008", "in another thread", "only on Redis"),
        (False, MAKE_NEW_KEY, "W008", ", then ", "one key for one name."),
        # It raises where no tenant is current. A plain cache's keys are made at each call.
        (True, MAKE_KEY_OF_TENANT, "W008", "AttributeError", "only on Redis"),
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
