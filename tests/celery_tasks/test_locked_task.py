"""LockedTask without a worker: called directly, and eagerly."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from django.test.utils import override_settings

from django_tasklock import LeaseLost, LockNotAcquired, locks
from django_tasklock.celery import LockedTask
from tests.conftest import UseRedis
from tests.steps import LONG, all_of, holder, taken

MakeTask = Callable[..., Any]


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


@pytest.fixture
def task() -> MakeTask:
    """``task(body, **options)``: a bound, locked task of an app of its own."""
    app = Celery("locked", broker="memory://", set_as_current=False, fixups=[])
    app.conf.update(task_always_eager=True, result_backend="cache+memory://")

    def make(body: Callable[..., Any], **options: Any) -> Any:
        defaults = {"base": LockedTask, "bind": True, "lazy": False, "lock_name": "video:{video}"}
        # Not shared: every app of this process would have it too.
        options = {"name": f"videos.{body.__name__}", "shared": False, **defaults, **options}
        return app.task(body, **options)

    return make


def process(self: Any, video: Any, how: str = "hls") -> str:
    self.lease.assert_held()
    assert holder(self.lease.name).token == self.lease.token
    return f"{video} as {how}"


class TestCalls:
    @pytest.mark.parametrize("how", ["directly", "eagerly"])
    def test_body_runs_under_the_lock(self, task: MakeTask, how: str) -> None:
        made = task(process)
        call = made if how == "directly" else lambda *args: made.delay(*args).get()
        assert call(7) == "7 as hls"
        assert not locks.is_locked("video:7")

    def test_owner_names_the_task_and_its_id(self, task: MakeTask) -> None:
        def look(self: Any, video: int) -> list[str | None]:
            owner = holder("video:7").owner
            return [owner.task, owner.task_id]

        made = task(look)
        assert made.apply((7,), task_id="id-1").get() == ["videos.look", "id-1"]
        assert made(7) == ["videos.look", None]

    def test_lock_is_released_when_the_body_raises(self, task: MakeTask) -> None:
        def fail(self: Any, video: int) -> None:
            raise KeyError(video)

        with pytest.raises(KeyError):
            task(fail)(7)
        assert task(fail).delay(7).state == "FAILURE"
        assert not locks.is_locked("video:7")

    def test_run_is_the_way_past_the_lock(self, task: MakeTask) -> None:
        def body(self: Any, video: int) -> str:
            return "ran"

        taken("video:7")
        assert task(body).run(7) == "ran"

    def test_there_is_no_lease_outside_a_run(self, task: MakeTask) -> None:
        with pytest.raises(RuntimeError, match="holds no lease"):
            _ = task(process).lease

    def test_each_thread_sees_its_own_lease(self, task: MakeTask) -> None:
        together = threading.Barrier(4)

        def body(self: Any, video: int) -> bool:
            together.wait(LONG)
            seen = self.lease.name
            together.wait(LONG)
            return bool(seen == self.lease.name == f"video:{video}")

        made = task(body)
        assert all_of(*(lambda n=n: made(n) for n in range(4))) == [True] * 4

    def test_lost_lease_is_no_success(self, task: MakeTask) -> None:
        def lose(self: Any, video: int) -> str:
            assert locks.clear(self.lease.name)
            return "not so"

        with pytest.raises(LeaseLost):
            task(lose)(7)
        assert task(lose).delay(7).state == "FAILURE"


class TestNames:
    def test_without_a_name_the_arguments_tell_it(self, task: MakeTask) -> None:
        names = []

        def look(self: Any, video: int, how: str = "hls") -> None:
            names.append(self.lease.name)

        made = task(look, lock_name=None)
        for args, kwargs in (((7,), {}), ((7, "hls"), {}), ((), {"how": "hls", "video": 7})):
            made(*args, **kwargs)
            made.apply(args, kwargs)
        assert len(set(names)) == 1
        assert names[0].startswith("videos.look:")
        made(8)
        assert len(set(names)) == 2

    def test_callable_may_name_it(self, task: MakeTask) -> None:
        def look(self: Any, video: int, how: str = "hls") -> str:
            return str(self.lease.name)

        made = task(look, lock_name=lambda video, how: f"{how}-{video % 10}")
        assert made(17) == "hls-7"

    def test_callable_that_names_nothing_is_an_error(self, task: MakeTask) -> None:
        with pytest.raises(TypeError, match="name is a str"):
            task(process, lock_name=lambda **_: None)(7)

    def test_wrong_arguments_are_the_calls_own_error(self, task: MakeTask) -> None:
        with pytest.raises(TypeError):
            task(process)(7, colour="red")


class TestConflict:
    def test_skipped_call_returns_a_plain_marker(self, task: MakeTask) -> None:
        locks.try_acquire("video:7", ttl=LONG, task="videos.process", task_id="id-1")
        made = task(process)
        for said in (made(7), made.delay(7).get()):
            assert json.loads(json.dumps(said)) == {
                "status": "skipped",
                "reason": "already_processing",
                "lock": "video:7",
                "holder": "id-1",
            }
        assert made(8) == "8 as hls"

    def test_holder_that_is_no_task_has_no_id(self, task: MakeTask) -> None:
        taken("video:7")
        assert task(process)(7)["holder"] is None

    @pytest.mark.parametrize("on_conflict", ["raise", "retry"])
    def test_call_without_a_queue_to_go_back_to_raises(
        self, task: MakeTask, on_conflict: str
    ) -> None:
        lease = taken("video:7")
        made = task(process, on_conflict=on_conflict)
        with pytest.raises(LockNotAcquired) as refused:
            made(7)
        assert refused.value.holder is not None
        assert refused.value.holder.token == lease.token
        with pytest.raises(LockNotAcquired):
            made.delay(7).get()

    def test_it_waits_if_it_is_told_to(self, task: MakeTask) -> None:
        lease = taken("video:7")
        made = task(process, lock_wait=LONG)
        with_release = threading.Timer(0.1, lease.release)
        with_release.start()
        assert made(7) == "7 as hls"

    def test_another_store_is_another_lock(self, task: MakeTask) -> None:
        def look(self: Any, video: int) -> bool:
            return locks.using("other").is_locked("video:7")

        taken("video:7")
        with override_settings(TASKLOCK={"default": {}, "other": {"KEY_PREFIX": "other"}}):
            assert task(look, lock_store="other")(7) is True


class TestAgain:
    """A task that is called inside its own run."""

    @pytest.mark.parametrize("how", ["directly", "eagerly"])
    def test_it_is_let_in_and_keeps_the_lock(self, task: MakeTask, how: str) -> None:
        def again(self: Any, video: int, left: int = 2) -> list[str]:
            token = self.lease.token
            if not left:
                return [token]
            inner = (
                again_task(video, left - 1)
                if how == "directly"
                else again_task.apply((video, left - 1)).get(disable_sync_subtasks=False)
            )
            assert holder("video:7").token == token
            assert self.lease.token == token
            return [token, *inner]

        again_task = task(again)
        assert len(set(again_task(7))) == 1
        assert not locks.is_locked("video:7")

    def test_another_thread_is_not_let_in(self, task: MakeTask) -> None:
        def again(self: Any, video: int, inner: bool = False) -> Any:
            return "ran" if inner else all_of(lambda: again_task(video, True))[0]

        again_task = task(again)
        assert again_task(7)["reason"] == "already_processing"

    def test_another_name_is_another_lock(self, task: MakeTask) -> None:
        def nested(self: Any, video: int) -> str:
            return str(self.lease.name) if video == 8 else nested_task(8) + self.lease.name

        nested_task = task(nested)
        assert nested_task(7) == "video:8video:7"


class TestWorkflows:
    def test_links_of_a_chain_may_need_the_same_lock(self, task: MakeTask) -> None:
        made = task(process)
        result: Any = chain(made.si(7), made.si(7, "dash")).apply()
        assert result.get() == "7 as dash"
        assert result.parent.get() == "7 as hls"

    def test_skipped_link_does_not_stop_a_chain(self, task: MakeTask) -> None:
        taken("video:7")
        made = task(process)
        assert chain(made.si(7), made.si(8)).apply().get() == "8 as hls"

    def test_groups_and_chords_go_on(self, task: MakeTask) -> None:
        def collect(self: Any, results: list[Any], video: int) -> int:
            return len(results)

        taken("video:7")
        made = task(process)
        parts = group(made.si(7), made.si(8))
        assert [type(each) for each in parts.apply().get()] == [dict, str]
        assert chord(parts, task(collect).s(9)).apply().get() == 2
