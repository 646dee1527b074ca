"""The setting TASKLOCK: read live, and wrong values said before anything is sent."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from django.core.cache import cache, caches
from django.test.utils import override_settings
from django_redis.cache import RedisCache

from django_tasklock import InvalidLockConfig, lock, locks
from django_tasklock.conf import StoreSettings
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore
from django_tasklock.stores.cache import CacheStore
from django_tasklock.stores.redis import RedisStore
from tests.conftest import UseCaches, UseRedis
from tests.five_methods import FiveMethodStore
from tests.servers import RedisServer
from tests.steps import holder, taken
from tests.store_cases import own_prefix, redis_cache

LOCMEM = "django.core.cache.backends.locmem.LocMemCache"


@pytest.fixture(autouse=True)
def two_caches(use_caches: UseCaches, redis_server: RedisServer) -> None:
    memory = {"BACKEND": LOCMEM, "LOCATION": own_prefix()}
    use_caches({"default": redis_cache(redis_server.url), "memory": memory})


def assert_refused(says: str, **changed: Any) -> None:
    with override_settings(**changed), pytest.raises(InvalidLockConfig, match=says):
        locks.acquire("video:1")


class OurRedis(RedisCache):  # type: ignore[misc]
    """A cache class of a team's own."""


class HalfStore(BaseStore):
    """A store that somebody is writing."""

    acquire = extend = get = FiveMethodStore.get  # type: ignore[assignment]


class OptionStore(FiveMethodStore):
    """A store that names its own option, and not those of its base."""

    known_options = frozenset({"FILE"})

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self.file = settings.options["FILE"]


class TestLive:
    def test_without_the_setting_it_is_the_default_cache(self) -> None:
        with override_settings(TASKLOCK=None):
            assert list(stores) == ["default"]
            lease = taken("video:1", ttl=None)
            assert lease.ttl == 60
            assert cache.get("lock:video:1")["token"] == lease.token

    def test_change_is_seen_at_once(self, use_redis: UseRedis) -> None:
        made = lock("video:2")
        with override_settings(TASKLOCK={"default": {"TTL": 5, "KEY_PREFIX": "a"}}):
            assert taken("video:1", ttl=None).ttl == 5
            assert cache.get("a:video:1")
            with override_settings(TASKLOCK={"default": {"TTL": 7.5, "KEY_PREFIX": "b"}}):
                assert taken("video:1", ttl=None).ttl == 7.5
                assert cache.get("b:video:1")
            assert locks.acquire("video:1") is None
            with made as lease:
                assert lease.ttl == 5
        before = stores["default"]
        use_redis()
        assert stores["default"] is not before

    def test_lease_is_released_where_it_was_taken(self) -> None:
        with override_settings(TASKLOCK={"default": {"KEY_PREFIX": "a"}}):
            lease = taken("video:1")
        assert lease.extend(), "it keeps its store, and its key"
        assert lease.release()


class TestAliases:
    def test_backend_is_chosen_by_the_caches_class(self, redis_server: RedisServer) -> None:
        with override_settings(TASKLOCK={"default": {}, "memory": {"CACHE": "memory"}}):
            assert type(stores["default"]) is RedisStore
            assert stores["default"] is stores["default"]
            assert type(stores["memory"]) is CacheStore
        subclass = redis_cache(redis_server.url) | {"BACKEND": f"{__name__}.OurRedis"}
        with override_settings(CACHES={"default": subclass}):
            assert type(stores["default"]) is RedisStore

    def test_prefix_and_version_of_the_cache_are_the_locks_too(self) -> None:
        taken("video:1")
        assert holder("video:1").key == caches["default"].make_key("lock:video:1")


class TestWrong:
    @pytest.mark.parametrize(
        ("tasklock", "says"),
        [
            ([], "TASKLOCK is a dict"),
            ({"default": {}, 7: {}}, r"TASKLOCK\[7\]: an alias is a str"),
            ({"default": []}, r"TASKLOCK\['default'\] is a dict"),
            ({"default": {"CACHES": "x"}}, "no setting CACHES; there are BACKEND, CACHE"),
            ({"default": {"TTL": "60"}}, r"\['TTL'\]: ttl is a number of seconds, not str"),
            ({"default": {"KEY_PREFIX": None}}, r"\['KEY_PREFIX'\] is a str"),
            ({"default": {"OPTIONS": []}}, r"\['OPTIONS'\] is a Mapping"),
            ({"default": {"BACKEND": RedisStore}}, r"\['BACKEND'\] is a dotted path"),
            ({"default": {"BACKEND": "nowhere.Store"}}, "cannot be imported"),
            ({"default": {"BACKEND": "django_tasklock._engine.lease.Lease"}}, "not a BaseStore"),
            ({"default": {"BACKEND": f"{__name__}.HalfStore"}}, "not implement release, clear$"),
            ({"default": {"BACKEND": f"{__name__}.OptionStore"}}, "be made: KeyError: 'FILE'"),
            (
                {"default": {"BACKEND": f"{__name__}.OptionStore", "OPTIONS": {"PATH": "x"}}},
                "no option PATH; there are FILE, TAKEOVER",
            ),
            ({"default": {"CACHE": "nope"}}, "'nope'"),
            ({"default": {"OPTIONS": {"TAKEOVER": "no"}}}, "TAKEOVER.*is a bool"),
            ({"default": {"OPTIONS": {"SOCKET_TIMEOUT": 0}}}, "SOCKET_TIMEOUT.*number.*not 0"),
            ({"default": {"OPTIONS": {"HISTORY": -1}}}, "HISTORY"),
            ({"other": {}}, "no lock store 'default'; TASKLOCK has 'other'"),
        ],
        ids=str,
    )
    def test_it_is_said_when_the_store_is_asked_for(self, tasklock: Any, says: str) -> None:
        assert_refused(says, TASKLOCK=tasklock)

    def test_store_of_ones_own_has_the_options_of_its_base(self) -> None:
        options = {"FILE": "locks", "TAKEOVER": False}
        backend = f"{__name__}.OptionStore"
        with override_settings(TASKLOCK={"default": {"BACKEND": backend, "OPTIONS": options}}):
            assert stores["default"].takeover is False

    @pytest.mark.parametrize(
        ("cache", "says"),
        [("nope", "the CACHE 'nope'"), ("memory", "django-redis.* a LocMemCache")],
    )
    def test_cache_that_a_backend_cannot_use_is_refused(self, cache: str, says: str) -> None:
        """Where the backend is named, nothing has looked at the cache before."""
        named = {"BACKEND": "django_tasklock.stores.redis.RedisStore", "CACHE": cache}
        assert_refused(says, TASKLOCK={"default": named})

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
    def test_cache_that_cannot_be_used_is_a_wrong_setting(
        self, redis_server: RedisServer, wrong: dict[str, Any], says: str
    ) -> None:
        """Nobody has used the cache yet, and Django does not check it."""
        configured = {"default": redis_cache(redis_server.url) | wrong}
        with override_settings(CACHES=configured, TASKLOCK={"default": {}}):
            assert_refused(says)
            # The oldest django-redis cannot close a cache without a location.
            with suppress(AttributeError):
                del caches["default"]
