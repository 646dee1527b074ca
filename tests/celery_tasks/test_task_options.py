"""A task's options are checked when its class is made, and a call's when it is made; the name and
the slots that they give."""

from __future__ import annotations

import functools
import inspect
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import date
from typing import Any

import pytest
from celery import Celery, Task, group, shared_task
from kombu import Producer

from django_tasklock import InvalidLockConfig, lock
from django_tasklock.celery import LockedTask, by, limit
from django_tasklock.exceptions import AlreadyQueued
from django_tasklock.guards import StatusGuard
from tests import inside
from tests.celery_tasks.conftest import reserved_for
from tests.mailroom import Mailroom

PER_CALL = ("unique_for", "on_duplicate")
GUARD = StatusGuard("app.Job", pk="video", source="queued", to="working", done="done")
OTHER_GUARD = StatusGuard("app.Job", source="queued", to="working", done="done")


def process(self: Any, video: int, how: str = "hls") -> None: ...


def made(annotations: Any = None, body: Any = process, **options: Any) -> Any:
    """A task of an app of its own, made at once."""
    app = Celery("options", broker="memory://", set_as_current=False, fixups=[])
    app.conf.task_annotations = annotations
    defaults = {"name": "process", "base": LockedTask, "bind": True, "lazy": False}
    defaults["shared"] = False  # Not in every app of this process.
    return app.task(body, **defaults | options)


def test_a_misspelt_option_is_refused_before_anything_runs(room: Mailroom) -> None:
    # Given a task of whose options one is misspelt
    # I expect an error when the task is made, which says what was meant
    with pytest.raises(InvalidLockConfig, match="no option lock_tll; did you mean lock_ttl"):
        room.task(lock_tll=60)

    # And the same of a call, of which nothing is sent
    task = room.task(unique_while="queued")
    with pytest.raises(InvalidLockConfig, match="no option uniqe_for; did you mean unique_for"):
        task.apply_async([1], uniqe_for=60)
    assert room.waiting() == []


WRONG_NAME: Any = 7
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"lock_ttl": 0}, "lock_ttl must be a number of seconds from 0.001 to ten years, not 0"),
    ({"unique_for": None}, "unique_for must be a number of seconds, not NoneType: None"),
    ({"debounce": float("inf")}, "debounce must be a number of seconds from 0.001 to ten years"),
    ({"debounce": 5, "debounce_max": -1}, "debounce_max must be a number of seconds from 0.001"),
    ({"lock_wait": -1}, "lock_wait must be None or from 0 to 1e308 seconds, not -1"),
    ({"lock_retry_for": "5"}, "lock_retry_for must be a number of seconds, not str: '5'"),
    ({"lock_hold_at_least": -1}, "lock_hold_at_least must be a number of seconds from 0 to ten"),
    ({"lock_cooldown": None}, "lock_cooldown must be a number of seconds, not NoneType: None"),
    ({"lock_cooldown_after_error": "1"}, "lock_cooldown_after_error must be a number of seconds"),
    ({"lock_slots": 1001}, "lock_slots must be a number from 1 to 1000, not 1001"),
    ({"lock_max_hold": 0}, "lock_max_hold must be a number of seconds from 0.001 to ten"),
    ({"lock_renew": "yes"}, "lock_renew must be a bool, not str: 'yes'"),
    ({"lock_store": None}, "lock_store must be a str, not NoneType: None"),
    ({"lock_max_attempts": 0}, "lock_max_attempts must be a number of runs >= 1, not 0"),
    ({"lock_max_attempts": True}, "lock_max_attempts must be a number of runs >= 1, not True"),
    ({"on_conflict": None}, "on_conflict must be one of skip, retry, raise, coalesce, replace, jo"),
    ({"on_outage": "skip"}, "on_outage must be one of retry, raise, run, not 'skip'"),
    ({"on_loss": "raise"}, "on_loss must be one of finish, stop, not 'raise'"),
    ({"unique_while": "sent"}, "unique_while must be one of queued, unfinished, None, not 'sent'"),
    ({"on_duplicate": "skip"}, "on_duplicate must be one of return, raise, not 'skip'"),
    ({"guard": "app.Job"}, "guard must be a StatusGuard, not 'app.Job'"),
    ({"guard": OTHER_GUARD}, "guard names the argument 'pk', and there is no such parameter"),
    ({"lock_name": 7}, "lock_name must be a template, by(...) or a callable, not 7"),
    ({"lock_name": "v:{vidoe}"}, "'v:{vidoe}' names the argument 'vidoe', and there is no such "),
    ({"lock_name": "v:{self.pk}"}, "names the argument 'self', and there is no such parameter"),
    ({"lock_name": by("user", "how")}, "by('user', 'how') names the argument 'user', and there"),
    ({"lock_name": ""}, "a lock's name must have 1 to 200"),
    ({"lock_name": lambda video: ""}, "lock_name is called with video, how by name, without self"),
    ({"lock_slots": lambda video, how, x: 1}, "lock_slots is called with video, how by name"),
    ({"unique_name": lambda x: ""}, "unique_name is called with video, how by name, without self"),
    ({"lock_limits": limit("a", 2)}, "lock_limits must be a list of limit(...), not Limit("),
    ({"lock_limits": [("a", 2)]}, "lock_limits must be a list of limit(...), not [('a', 2)]"),
    ({"lock_limits": [limit("a", 0)]}, "must be a number from 1 to 1000, not 0"),
    ({"lock_limits": [limit("a", 2, -1)]}, "must be a number of seconds from 0 to ten years"),
    ({"lock_limits": [limit(WRONG_NAME, 2)]}, "must be a template, by(...) or a callable, not 7"),
    ({"lock_limits": [limit("v:{x}", 2)]}, "'v:{x}' names the argument 'x', and there is no such"),
    ({"lock_limits": [limit(lambda x: "", 2)]}, "lock_limits[0] is called with video, how by name"),
    # Together
    ({"lock_slots": 2, "guard": GUARD}, "its guard needs a lock that one run at a time holds: "),
    ({"lock_limits": [limit("a", 2), limit("a", 3)]}, "all lock_limits must give different names"),
    ({"lock_name": "a", "lock_limits": [limit("a", 3)]}, "must give different names: while a lock"),
    ({"on_loss": "stop", "lock_renew": False}, 'on_loss="stop" needs lock_renew: only what renews'),
    ({"lock_slots": 2, "unique_while": "unfinished"}, "with lock_slots several calls may run: "),
    ({"unique_name": "v"}, 'unique_name needs unique_while="queued". Add it, or leave this out'),
    ({"unique_name": "v", "unique_while": "unfinished"}, 'unique_name needs unique_while="queued"'),
    ({"debounce": 5, "debounce_max": 4.9}, "debounce_max must be at least debounce, 5, not 4.9"),
    ({"debounce_max": 5}, "debounce_max has no effect without debounce. Add it"),
    ({"debounce": 5, "unique_while": "queued"}, "debounce and unique_while exclude each other"),
    ({"on_conflict": "join", "guard": GUARD}, 'with "join" leave out guard, ignore_result, lock'),
    ({"on_conflict": "join", "ignore_result": True}, 'with "join" leave out guard, ignore_result'),
    ({"on_conflict": "join", "lock_slots": 2}, 'with "join" leave out guard, ignore_result, lock'),
    ({"on_conflict": "join", "lock_wait": None}, "lock_slots and lock_wait"),
    ({"on_conflict": "replace", "unique_while": "queued"}, "goes with neither unique_while nor"),
    ({"on_conflict": "replace", "lock_slots": 2}, "goes with neither unique_while nor lock_slots"),
    # Misspelt
    ({"gaurd": GUARD}, "there is no option gaurd; did you mean guard? An attribute of your own"),
    ({"onconflict": "skip"}, "there is no option onconflict; did you mean on_conflict?"),
    ({"lock_ttl_seconds": 5}, "there is no option lock_ttl_seconds; there are lock_name, lock_st"),
    ({"debounce_interval": 5}, "there is no option debounce_interval; there are lock_name"),
    ({"lock_expiry": 5}, "there is no option lock_expiry; there are lock_name"),
    ({"until_commit": True}, "there is no option until_commit; there are lock_name"),
    # What other decorators call them, `lock` among them
    ({"unique": True}, 'there is no option unique; did you mean unique_while="queued"?'),
    *(
        ({each: 5}, f"there is no option {each}; did you mean lock_{each}? An attribute of ")
        for each in ("ttl", "wait", "renew", "slots", "max_hold", "cooldown")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("options", "says"), WRONG, ids=[says for _, says in WRONG])
def test_a_wrong_option_is_an_error_when_the_task_is_made(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidLockConfig, match=f"task process: .*{re.escape(says)}"):
        made(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"lock_ttl": 0.5, "lock_wait": None, "lock_retry_for": None, "lock_name": None},
        {"lock_name": lambda video, **_: "x", "lock_slots": lambda video, how, x=1: 2},
        {"guard": GUARD, "on_conflict": "run"},
        {"debounce": 5, "debounce_max": 5, "expires": 6},
        {"debounce_max": 5, "on_conflict": "replace"},
        {"rate_limit": "5/m", "acks_late": True, "colour": "red", "page_size": 5},
        {"_lock_ttl": 5, "lock_up": print},
        {"lock_colour": property(lambda _: "red"), "unique_url": functools.cached_property(print)},
    ],
    ids=lambda options: "-".join(options),
)
def test_a_correct_option_is_accepted(options: dict[str, Any]) -> None:
    assert vars(type(made(**options))).items() >= options.items()
    assert made(annotations={"*": {"lock_ttl": 7}}).lock_ttl == 7


def of(*bases: type, **attributes: Any) -> Any:
    return type("Made", (*bases, LockedTask), attributes)


def further(self: Any, video: int, **more: Any) -> None: ...


async def awaited(self: Any, video: int) -> None: ...


async def many(self: Any, video: int) -> AsyncIterator[int]:
    yield 1


def one_by_one(self: Any, video: int) -> Iterator[int]:
    yield 1


ABSTRACT = type("Base", (LockedTask,), {"abstract": True, "lock_name": "v:{video}"})
ASYNC = "its body is async or a generator, of which Celery runs nothing. Write a plain def, and"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: of(lock_name=7), "task Made: lock_name must be a template"),
        (lambda: type("Made", (ABSTRACT,), {"run": one_by_one}), ASYNC),
        (lambda: type("Made", (ABSTRACT,), {"run": lambda self, job: 0}), "no such parameter"),
        (lambda: of(type("Mixin", (), {"lock_tll": 5})), "did you mean lock_ttl"),
        (lambda: made(body=awaited), ASYNC),
        (lambda: of(run=awaited), "call asyncio.run(...) or asgiref.sync.async_to_sync(...) in it"),
        (lambda: of(run=staticmethod(many)), ASYNC),
        (lambda: of(run=further, lock_name=staticmethod(lambda how: how)), "called with video by "),
        (lambda: of(run=process, lock_name=lambda self, video: "x"), "missing a required argument"),
    ],
)  # fmt: skip
def test_a_wrong_class_is_refused(make: Callable[[], Any], says: str) -> None:
    """One without a body is checked as far as it can be."""
    with pytest.raises(InvalidLockConfig, match=re.escape(says)):
        make()


def test_a_correct_class_is_accepted() -> None:
    of(run=further, lock_name=staticmethod(lambda video, how, more: "x"), guard=OTHER_GUARD)
    of(run=staticmethod(lambda video: None), lock_name="v:{video}")
    named = of(run=further, lock_name=classmethod(lambda cls, video, **_: f"v:{video}"))
    assert named().lock_name_of((7,), {}) == "v:7"


def test_a_lock_over_a_task_is_refused_with_what_to_write() -> None:
    app: Any = Celery("decorated", set_as_current=False, fixups=[])
    plain: Any = app.task(process, shared=False)
    for task in (made(base=Task), plain, shared_task(process), of(run=process)()):
        with pytest.raises(TypeError, match="Use base=LockedTask, or put @shared_task above @lock"):
            lock("v:{video}")(task)


# ------------------------------------------------------------------------------ names and slots


def test_one_job_has_one_name_however_it_is_called() -> None:
    named = {
        "v:{video}:{how}": ("v:7:hls", "v:{video}:{how}"),
        by("how", "video"): ("process:hls:7", "process:{how}:{video}"),
        (lambda video, how: f"{how}:{video}"): ("hls:7", "process:{lock_name}"),
        None: (r"process:\w+", "process:{arguments}"),
    }
    for lock_name, (name, template) in named.items():
        naming = made(lock_name=lock_name).naming
        ways: list[Any] = [((7,), {}), ((), {"video": 7}), ((7, "hls"), {})]
        ways += [((), {"how": "hls", "video": 7})]
        names = {naming.named(*way)[0] for way in ways}
        names.add(naming.name_from(naming.arguments_of((7,), {})))
        assert re.fullmatch(name, names.pop())
        assert (names, naming.template) == (set(), template)
        with pytest.raises(TypeError):
            naming.named((), {})
    with pytest.raises(ValueError, match="a lock's name must have"):
        made(lock_name=lambda video, how: "with a space").naming.named((7,), {})


def test_slots_may_depend_on_the_arguments() -> None:
    task = made(lock_name="v:{video}", lock_slots=lambda video, how: video)
    assert task.naming.named((2,), {})[:2] == ("v:2", 2)
    assert made(lock_name="v:{video}").naming.named((2,), {})[:2] == ("v:2", 1)
    for wrong in (0, 1001, "2", None, 2.5, True):
        with pytest.raises((TypeError, ValueError), match="lock_slots of the task process must"):
            task.naming.named((wrong,), {})


# ------------------------------------------------------------------------------ options of a call

DAY_SECONDS = 86400.0


def test_an_eta_may_be_whatever_celery_takes(room: Mailroom) -> None:
    room.task().apply_async([1], eta=date(2100, 1, 1))
    assert len(room.ids()) == 1


def test_a_call_may_say_what_becomes_of_a_duplicate(room: Mailroom) -> None:
    task = room.task(unique_while="queued")
    loud = room.task(unique_while="queued", on_duplicate="raise")
    first, other = task.delay(1), loud.delay(1)
    for ask in (task.apply_async, lambda args, **o: task.s(*args).set(**o).apply_async()):
        with pytest.raises(AlreadyQueued, match=first.id):
            ask([1], on_duplicate="raise")
    assert task.delay(1).id == first.id
    assert loud.apply_async([1], on_duplicate="return").id == other.id
    assert room.ids() == [first.id, other.id]


def test_a_call_may_say_for_how_long_it_is_unique_and_its_retries_keep_it(room: Mailroom) -> None:
    def work(self: Any, job: Any) -> None:
        raise self.retry(countdown=0)

    task = room.task(work, unique_while="queued", unique_for=60, on_conflict="retry")
    task.apply_async([1], unique_for=DAY_SECONDS, countdown=100, headers={"mine": 1})
    assert DAY_SECONDS < reserved_for(room, task) <= DAY_SECONDS + 100
    for _ in range(2):
        message = room.take()
        assert (message.headers["mine"], message.headers.get("unique_for")) == (1, None)
        assert room.deliver(message)[0] == "RETRY"
        assert reserved_for(room, task) > DAY_SECONDS / 2
    with lock("job:1", ttl=60):
        assert room.deliver(room.take())[0] == "IGNORED"
    assert reserved_for(room, task) > DAY_SECONDS / 2


def test_a_message_of_a_group_takes_them_and_is_sent_as_it_is(room: Mailroom) -> None:
    part = room.task(unique_while="queued").s(1).set(on_duplicate="raise", unique_for=5)
    assert len(group([part, part])().results) == len(room.waiting()) == 2
    room.app.conf.task_always_eager = True
    assert part.apply_async().get() == "done:1"


WRONG_IN_A_CALL: list[tuple[dict[str, Any], str]] = [
    *(
        ({each: getattr(LockedTask, each)}, f"{each} is an option of the task: a call may give ")
        for each in inside.OPTIONS
        if each not in PER_CALL
    ),
    ({"unique_for": 0}, "unique_for must be a number of seconds from 0.001 to ten years, not 0"),
    ({"on_duplicate": None}, "on_duplicate must be one of return, raise, not None"),
    ({"unique_anywhere": 5}, "there is no option unique_anywhere; there are lock_name"),
    ({"wait": 5}, "there is no option wait; did you mean lock_wait?"),
]


def test_a_wrong_option_of_a_call_is_refused(room: Mailroom, subtests: Any) -> None:
    task = room.task(unique_while="queued")
    calls = (task.apply_async, task.apply, lambda args, **o: task.s(*args).set(**o).delay())
    for options, says in WRONG_IN_A_CALL:
        with subtests.test(says):
            for call in calls:
                with pytest.raises(InvalidLockConfig, match=f"{task.name}: {re.escape(says)}"):
                    call([1], **options)
    for option in PER_CALL:
        with pytest.raises(InvalidLockConfig, match=f"{option} has no effect without unique_while"):
            room.task().apply_async([1], **{option: getattr(LockedTask, option)})
    assert room.waiting() == []


def test_neither_celerys_own_options_nor_stamps_look_like_ours(room: Mailroom) -> None:
    functions: list[Callable[..., Any]] = [
        Task.apply_async, Task.apply, Celery.send_task, Producer.publish, room.app.amqp.as_task_v2
    ]  # fmt: skip
    theirs = {name for each in functions for name in inspect.signature(each).parameters}
    theirs |= {"delivery_mode", "soft_time_limit", "immediate", "mandatory", "message_id", "type"}
    theirs |= {"correlation_id", "expiration", "user_id", "app_id", "cluster_id"}
    inside.check_call(room.task(), dict.fromkeys(theirs))
    signature = room.task().s(1)
    signature.stamp(lock_owner="me")
    signature.apply_async()
    assert list(room.take().headers["stamps"]) == ["lock_owner"]


# ------------------------------------------------------------------------------ Celery's own

SOURCE = """
import django; django.setup()
from celery import Celery, Task
from django_tasklock.celery import LockedTask
app = Celery("x", broker="memory://", fixups=[])
def body(): pass
options = {"lock_name": "a", "unique_while": "queued", "on_conflict": "coalesce"}
first = app.task(body, name="first", base=LockedTask, **options)
second = app.task(body, name="second", base=LockedTask, **options)
plain = app.task(body, name="plain")
app.conf.task_annotations = {"second": {"rate_limit": "10/s"}}
app.conf.task_acks_late = True
app.finalize()
print(Task.__dict__["__bound__"], LockedTask.__bound__, second.rate_limit, second.acks_late)
print(len({id(task.request_stack) for task in (first, second, plain)}))
"""


def test_the_tasks_of_a_process_do_not_share_what_is_each_ones_own(
    process_env: Callable[[], dict[str, str]],
) -> None:
    """Requests, annotations and the app's settings: a class that is made binds no base class."""
    command = [sys.executable, "-W", "error", "-c", SOURCE]
    said = subprocess.check_output(command, env=process_env(), text=True, timeout=180)
    assert said.split() == ["False", "False", "10/s", "True", "3"]
