"""The setting TASKLOCK: read live, and wrong values said before anything is sent."""

from __future__ import annotations

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

    def test_change_is_seen_at_once(self) -> None:
        with override_settings(TASKLOCK={"default": {"TTL": 5, "KEY_PREFIX": "a"}}):
            assert taken("video:1", ttl=None).ttl == 5
            assert cache.get("a:video:1")
            with override_settings(TASKLOCK={"default": {"TTL": 7.5, "KEY_PREFIX": "b"}}):
                assert taken("video:1", ttl=None).ttl == 7.5
                assert cache.get("b:video:1")
            assert locks.acquire("video:1") is None
        assert taken("video:1", ttl=None).ttl == 60

    def test_lock_made_earlier_follows(self) -> None:
        made = lock("video:1")
        with override_settings(TASKLOCK={"default": {"TTL": 5}}), made as lease:
            assert lease.ttl == 5
        with override_settings(TASKLOCK={"default": {"TTL": 9}}), made as lease:
            assert lease.ttl == 9

    def test_change_of_the_caches_is_seen(self, use_redis: UseRedis) -> None:
        before = stores["default"]
        use_redis()
        assert stores["default"] is not before

    def test_lease_is_released_where_it_was_taken(self) -> None:
        with override_settings(TASKLOCK={"default": {"KEY_PREFIX": "a"}}):
            lease = taken("video:1")
        assert lease.extend() is False, "these settings know another key"


class TestAliases:
    def test_backend_is_chosen_by_the_caches_class(self) -> None:
        with override_settings(TASKLOCK={"default": {}, "memory": {"CACHE": "memory"}}):
            assert type(stores["default"]) is RedisStore
            assert type(stores["memory"]) is CacheStore

    def test_subclass_of_a_redis_cache_is_one(self, redis_server: RedisServer) -> None:
        configured = redis_cache(redis_server.url) | {"BACKEND": f"{__name__}.OurRedis"}
        with override_settings(CACHES={"default": configured}):
            assert type(stores["default"]) is RedisStore

    def test_backend_may_be_named(self) -> None:
        backend = "django_tasklock.stores.cache.CacheStore"
        with override_settings(TASKLOCK={"default": {"BACKEND": backend}}):
            assert type(stores["default"]) is CacheStore
            lease = taken("video:1")
            assert lease.fence is None
            assert lease.release()

    def test_one_store_is_kept(self) -> None:
        assert stores["default"] is stores["default"]
        assert stores.all(initialized_only=True) == [stores["default"]]

    def test_stores_may_share_a_cache(self) -> None:
        with override_settings(TASKLOCK={"default": {}, "other": {"KEY_PREFIX": "other"}}):
            taken("video:1")
            other = locks.using("other").acquire("video:1")
            assert other is not None
            assert [info.store for info in locks.list()] == ["default"]
            assert [info.store for info in locks.using("other").list()] == ["other"]

    def test_prefix_and_version_of_the_cache_are_the_locks_too(self) -> None:
        taken("video:1")
        assert holder("video:1").key == caches["default"].make_key("lock:video:1")
        assert holder("video:1").key.startswith(caches["default"].key_prefix)


class TestWrong:
    @pytest.mark.parametrize(
        ("tasklock", "says"),
        [
            ([], "TASKLOCK is a dict"),
            ("default", "TASKLOCK is a dict"),
            ({"default": {}, 7: {}}, r"TASKLOCK\[7\]: an alias is a str"),
            ({"default": []}, r"TASKLOCK\['default'\] is a dict"),
            ({"default": {"CACHES": "x"}}, "no setting CACHES; there are BACKEND, CACHE"),
            ({"default": {"ttl": 5}}, "no setting ttl"),
            ({"default": {"TIMEOUT": 5}}, "no setting TIMEOUT"),
            ({"default": {7: 5}}, "no setting 7"),
            ({"default": {"TTL": "60"}}, r"\['TTL'\]: ttl is a number of seconds, not str"),
            ({"default": {"TTL": 0}}, r"\['TTL'\]: ttl"),
            ({"default": {"TTL": None}}, r"\['TTL'\]: ttl"),
            ({"default": {"TTL": True}}, r"\['TTL'\]: ttl"),
            ({"default": {"TTL": float("inf")}}, r"\['TTL'\]: ttl"),
            ({"default": {"KEY_PREFIX": None}}, r"\['KEY_PREFIX'\] is a str"),
            ({"default": {"CACHE": 7}}, r"\['CACHE'\] is a str"),
            ({"default": {"OPTIONS": []}}, r"\['OPTIONS'\] is a Mapping"),
            ({"default": {"BACKEND": RedisStore}}, r"\['BACKEND'\] is a dotted path"),
            ({"default": {"BACKEND": "nowhere.Store"}}, "cannot be imported"),
            ({"default": {"BACKEND": ".Store"}}, "cannot be imported"),
            ({"default": {"BACKEND": "django_tasklock.stores.cache.Store"}}, "cannot be imported"),
            ({"default": {"BACKEND": "django_tasklock._engine.lease.Lease"}}, "not a BaseStore"),
            (
                {"default": {"BACKEND": "django_tasklock._values.tokens.new_token"}},
                "not a BaseStore",
            ),
            ({"default": {"BACKEND": f"{__name__}.HalfStore"}}, "not implement release, clear$"),
            ({"default": {"BACKEND": f"{__name__}.OptionStore"}}, "be made: KeyError: 'FILE'"),
            (
                {"default": {"BACKEND": f"{__name__}.OptionStore", "OPTIONS": {"PATH": "x"}}},
                "no option PATH; there are FILE, TAKEOVER",
            ),
            ({"default": {"CACHE": "nope"}}, "'nope'"),
            ({"default": {"OPTIONS": {"TAKE_OVER": False}}}, "no option TAKE_OVER.*TAKEOVER"),
            ({"default": {"OPTIONS": {"TAKEOVER": "no"}}}, "TAKEOVER.*is a bool"),
            ({"default": {"OPTIONS": {"SOCKET_TIMEOUT": 0}}}, "SOCKET_TIMEOUT.*number.*not 0"),
            ({"default": {"OPTIONS": {"SOCKET_TIMEOUT": True}}}, "SOCKET_TIMEOUT.*not True"),
            ({"default": {"OPTIONS": {"SOCKET_TIMEOUT": "5"}}}, "SOCKET_TIMEOUT.*not '5'"),
            ({"other": {}}, "no lock store 'default'; TASKLOCK has 'other'"),
            ({}, "no lock store 'default'; TASKLOCK has no alias"),
        ],
        ids=str,
    )
    def test_it_is_said_when_the_store_is_asked_for(self, tasklock: Any, says: str) -> None:
        with (
            override_settings(TASKLOCK=tasklock),
            pytest.raises(InvalidLockConfig, match=says),
        ):
            locks.acquire("video:1")

    def test_store_of_ones_own_has_the_options_of_its_base(self) -> None:
        options = {"FILE": "locks", "TAKEOVER": False}
        backend = f"{__name__}.OptionStore"
        with override_settings(TASKLOCK={"default": {"BACKEND": backend, "OPTIONS": options}}):
            assert stores["default"].takeover is False

    def test_client_that_picks_a_server_by_the_key_is_refused(self, use_redis: UseRedis) -> None:
        use_redis(CLIENT_CLASS="django_redis.client.ShardClient")
        with pytest.raises(InvalidLockConfig, match="ShardClient"):
            locks.acquire("video:1")

    @pytest.mark.parametrize(
        ("backend", "cache", "says"),
        [
            ("cache.CacheStore", "nope", "the CACHE 'nope'"),
            ("redis.RedisStore", "nope", "the CACHE 'nope'"),
            ("redis.RedisStore", "plain", "needs a cache of django-redis.* is a LocMemCache"),
            ("redis.RedisStore", "database", "needs a cache of django-redis.* is a DatabaseCache"),
        ],
    )
    def test_cache_that_a_backend_cannot_use_is_refused(
        self, backend: str, cache: str, says: str
    ) -> None:
        """Where the backend is named, nothing has looked at the cache before."""
        path = f"django_tasklock.stores.{backend}"
        where = "django.core.cache.backends"
        caches = {
            "default": {"BACKEND": f"{where}.locmem.LocMemCache"},
            "plain": {"BACKEND": f"{where}.locmem.LocMemCache"},
            "database": {"BACKEND": f"{where}.db.DatabaseCache", "LOCATION": "cached"},
        }
        with (
            override_settings(
                CACHES=caches, TASKLOCK={"default": {"BACKEND": path, "CACHE": cache}}
            ),
            pytest.raises(InvalidLockConfig, match=says),
        ):
            locks.acquire("video:1")

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [
            ({"KEY_FUNCTION": "nowhere.make_key"}, "ModuleNotFoundError: No module named 'nowhere"),
            ({"OPTIONS": {"CLIENT_CLASS": "nowhere.Client"}}, "ModuleNotFoundError"),
            ({"OPTIONS": []}, "AttributeError: 'list' object has no attribute 'get'"),
        ],
        ids=str,
    )
    def test_cache_that_cannot_be_made_is_a_wrong_setting(
        self, redis_server: RedisServer, wrong: dict[str, Any], says: str
    ) -> None:
        """Nobody has used the cache yet, and Django does not check it."""
        caches = {"default": redis_cache(redis_server.url) | wrong}
        with (
            override_settings(CACHES=caches, TASKLOCK={"default": {}}),
            pytest.raises(InvalidLockConfig, match=f"the CACHE 'default' .* be made: {says}"),
        ):
            locks.acquire("video:1")

    def test_option_that_no_connection_has_is_said_at_once(
        self, use_redis: UseRedis, redis_server: RedisServer
    ) -> None:
        """redis-py looks at it when it makes a connection, which may be at the first lock."""
        use_redis(f"{redis_server.url}?nosuch=1")
        with pytest.raises(InvalidLockConfig, match="unexpected keyword argument 'nosuch'"):
            locks.acquire("video:1")

    def test_cache_that_swallows_its_errors_is_refused(self, redis_server: RedisServer) -> None:
        backend = "django_tasklock.stores.cache.CacheStore"
        swallowing = redis_cache(redis_server.url, IGNORE_EXCEPTIONS=True)
        with (
            override_settings(
                CACHES={"default": swallowing}, TASKLOCK={"default": {"BACKEND": backend}}
            ),
            pytest.raises(InvalidLockConfig, match="swallows its errors"),
        ):
            locks.acquire("video:1")


def test_a_cache_without_a_location_is_a_wrong_setting(use_caches: UseCaches) -> None:
    """As where an environment variable is not set."""
    use_caches({"default": redis_cache("")})
    with pytest.raises(InvalidLockConfig, match="Missing connections string"):
        locks.is_locked("video:1")
    # The oldest django-redis cannot close such a cache: each later test would fail at its end.
    del caches["default"]
