"""`DatabaseStore` by way of a real PgBouncer."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections
from psycopg.conninfo import make_conninfo

from django_tasklock import StoreUnavailable, locks
from django_tasklock.stores import stores
from tests.conftest import ProxyTo, UseCaches, database_alias
from tests.pgbouncer import MODES, pgbouncer
from tests.proxied_databases import proxy_before
from tests.steps import LONG, Meanwhile, taken
from tests.store_cases import database_store, make_lease_table
from tests.waiting import PATIENCE

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("mode", MODES)
def test_a_lock_goes_from_holder_to_waiter(
    postgres_alias: str, postgres_dsn: str, use_caches: UseCaches, mode: str
) -> None:
    make_lease_table(postgres_alias)
    there: Any = dict(connections.settings[postgres_alias]) | {"HOST": "127.0.0.1"}
    with pgbouncer(postgres_dsn, mode) as port, database_alias("pooled", there | {"PORT": port}):
        use_caches({}, {"default": database_store("pooled")})
        lease = taken("video:1")
        waiter = Meanwhile(lambda: taken("video:1", wait=PATIENCE))
        assert lease.extend(LONG)
        assert lease.release()
        assert (waiter.result().fence or 0) > (lease.fence or 0)
        assert locks.acquire("video:1") is None
        several = locks.acquire_all(["video:2", "video:3"])
        assert several is not None
        assert all(each.release() for each in several)
        stores.forget()


@pytest.mark.parametrize("known", [True, False], ids=["connected before", "new"])
def test_59_a_server_that_hangs_behind_it_is_an_outage_after_the_timeout(
    postgres_alias: str, postgres_dsn: str, proxy_to: ProxyTo, use_caches: UseCaches, known: bool
) -> None:
    """It answers a new connection by itself, and has no answer to the first statement."""
    make_lease_table(postgres_alias)
    there: Any = dict(connections.settings[postgres_alias]) | {"HOST": "127.0.0.1"}
    proxy = proxy_before(postgres_alias, proxy_to)
    behind = make_conninfo(postgres_dsn, host="127.0.0.1", port=proxy.port)
    with (
        pgbouncer(behind, "transaction") as port,
        database_alias("pooled", there | {"PORT": port}),
    ):
        use_caches({}, {"default": database_store("pooled", TIMEOUT=1.0)})
        assert taken("video:1").release()
        if not known:
            stores["default"].close_idle()
        proxy.pause()
        with pytest.raises(StoreUnavailable, match="no answer in 1 s"):
            locks.acquire("video:1")
        proxy.resume()
        assert taken("video:1", wait=PATIENCE).release()
        stores.forget()
