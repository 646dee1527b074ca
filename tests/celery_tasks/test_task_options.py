"""A task's options are checked when its class is made."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from celery import Celery, Task
from django.db.models import Q

from django_tasklock import InvalidLockConfig
from django_tasklock.celery import LockedTask
from django_tasklock.celery.options import OPTIONS
from django_tasklock.guards import StatusGuard

GUARD = StatusGuard("app.Job", pk="video", source="queued", to="working", done="done")


class Batches(Task):
    """What celery-batches has of a task."""

    def Strategy(  # type: ignore[override]
        self, task: Any, app: Any, consumer: Any
    ) -> Any:
        """Collect messages, and call the task with many of them."""

    def apply(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        """Call it with one."""
        return super().apply(([args],), kwargs, *rest, **options)


def made(annotations: Any = None, **options: Any) -> Any:
    """A task of an app of its own, made at once."""
    app = Celery("options", broker="memory://", set_as_current=False, fixups=[])
    app.conf.task_annotations = annotations

    def process(self: Any, video: int, how: str = "hls") -> None: ...

    defaults = {"name": "process", "base": LockedTask, "bind": True, "lazy": False}
    defaults["shared"] = False  # Not in every app of this process.
    return app.task(process, **defaults | options)


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("lock_tll", "lock_ttl"),
        ("gaurd", "guard"),
        ("lock_nmae", "lock_name"),
        ("lock_names", "lock_name"),
        ("on_conflit", "on_conflict"),
        ("onconflict", "on_conflict"),
        ("on_outrage", "on_outage"),
        ("lock_retry_fro", "lock_retry_for"),
        ("lock_timeout", None),
        ("lock_ttl_seconds", None),
    ],
)
def test_option_that_does_not_exist_is_an_error(typo: str, meant: str | None) -> None:
    with pytest.raises(InvalidLockConfig, match=f"task process: there is no option {typo}") as no:
        made(**{typo: 5})
    if meant:
        assert f"did you mean {meant}?" in str(no.value)
    else:
        assert any(name in str(no.value) for name in OPTIONS)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lock_ttl": 0}, "ttl is a number of seconds"),
        ({"lock_ttl": -1}, "ttl is a number of seconds"),
        ({"lock_slots": 0}, "from 1 to 1000"),
        ({"lock_slots": 1001}, "from 1 to 1000"),
        ({"lock_slots": True}, "slots is a whole number"),
        ({"lock_slots": "2"}, "slots is a whole number"),
        ({"lock_slots": 2, "guard": GUARD, "lock_name": "{video}"}, "its guard needs a lock"),
        ({"lock_slots": 2, "unique_while": "unfinished"}, "unique_while"),
        ({"lock_ttl": float("nan")}, "ttl"),
        ({"lock_ttl": "60"}, "ttl is a number of seconds, not str"),
        ({"lock_ttl": True}, "ttl is a number of seconds, not bool"),
        ({"lock_wait": -1}, "wait is None or"),
        ({"lock_wait": "5"}, "wait is a number"),
        ({"lock_retry_for": -1}, "wait is None or"),
        ({"lock_renew": "yes"}, "lock_renew is a bool"),
        ({"lock_store": None}, "lock_store is an alias"),
        ({"lock_max_attempts": 0}, "lock_max_attempts"),
        ({"lock_max_attempts": True}, "lock_max_attempts"),
        ({"lock_max_attempts": 2.5}, "lock_max_attempts"),
        ({"on_conflict": "ignore"}, "on_conflict is one of skip, retry, raise"),
        ({"on_conflict": None}, "on_conflict is one of"),
        ({"on_outage": "skip"}, "on_outage is one of retry, raise, run"),
        ({"debounce": 0}, "debounce: ttl is a number of seconds"),
        ({"debounce": "5"}, "debounce: ttl is a number of seconds, not str"),
        ({"debounce": True}, "debounce: ttl is a number of seconds, not bool"),
        ({"debounce": float("inf")}, "debounce: ttl"),
        ({"debounce": 5, "debounce_max": -1}, "debounce_max: ttl is a number of seconds"),
        ({"debounce": 5, "debounce_max": 4.9}, "debounce_max is at least debounce, 5, not 4.9"),
        ({"debounce_max": 5}, "debounce_max has no effect: the task has no debounce"),
        ({"debounce": 5, "unique_while": "queued"}, "debounce and unique_while exclude each"),
        ({"debounce": 5, "expires": 5}, "its messages expire after 5 s, before their debounce"),
        ({"debounc": 5}, "there is no option debounc; did you mean debounce?"),
        ({"debounce_for": 5}, "there is no option debounce_for"),
        ({"guard": "app.Job"}, "guard is a StatusGuard"),
        ({"guard": Q(status="queued")}, "guard is a StatusGuard"),
        ({"guard": StatusGuard("app.Job", source="a", to="b", done="c")}, "key from 'pk'"),
        ({"lock_name": "v:{vidoe}"}, "'vidoe', and there is no such parameter.*video, how"),
        ({"lock_name": "v:{self.pk}"}, "'self', and there is no such parameter"),
        ({"lock_name": "v:{}"}, "no name"),
        ({"lock_name": "v:{video"}, "expected"),
        ({"lock_name": "v:{video.__class__.__module__}"}, "reads a special attribute"),
        ({"lock_name": ""}, "empty"),
        ({"lock_name": "a video:{video}"}, "no spaces"),
        ({"lock_name": "x" * 201}, "at most 200"),
        ({"lock_name": 7}, "template is a str"),
    ],
    ids=str,
)
def test_wrong_value_is_an_error(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidLockConfig, match=f"task process: .*{says}"):
        made(**options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lock_ttl": 0.5, "lock_wait": None, "lock_retry_for": None},
        {"lock_name": "v:{video}:{how}"},
        {"lock_name": lambda video, how: "x"},
        {"lock_name": None},
        {"guard": GUARD},
        {"on_conflict": "run"},
        {"debounce": 0.5},
        {"debounce": 5, "debounce_max": 5, "expires": 6},
        {"rate_limit": "5/m", "acks_late": True},
        {"colour": "red", "page_size": 5},
    ],
    ids=lambda options: "-".join(options) or "nothing",
)
def test_correct_value_is_accepted(options: dict[str, Any]) -> None:
    task = made(**options)
    for name, value in options.items():
        assert vars(type(task))[name] == value


@pytest.mark.parametrize("option", ["lock_name", "lock_slots"])
def test_function_that_does_not_take_the_arguments_is_an_error(option: str) -> None:
    """All of them, by name: those that have defaults too."""
    wrong: list[Any] = [lambda video: video, lambda video, how, more: video]
    for function in wrong:
        with pytest.raises(InvalidLockConfig, match=f"{option} is called .*video, how"):
            made(**{option: function})
    right: list[Any] = [lambda video, **_: video, lambda video, how, x=1: video]
    for function in right:
        assert made(**{option: function})

    def further(video: int, **more: Any) -> None: ...

    def define(function: Any) -> Any:
        app: Any = Celery(set_as_current=False)
        return app.task(further, base=LockedTask, lazy=False, shared=False, **{option: function})

    define(wrong[1])
    with pytest.raises(InvalidLockConfig, match=f"{option} is called .*video"):
        define(lambda how: how)


class TestClasses:
    def test_class_without_a_body_is_checked_as_far_as_it_can_be(self) -> None:
        class Base(LockedTask):
            abstract = True
            lock_name: ClassVar[Any] = "v:{video}"
            lock_ttl: ClassVar[Any] = 5

        with pytest.raises(InvalidLockConfig, match="no such parameter"):

            class Task(Base):
                def run(self, job: int) -> None: ...

        with pytest.raises(InvalidLockConfig, match="template or a callable"):

            class Wrong(LockedTask):
                lock_name: ClassVar[Any] = 5

    def test_typo_in_a_class_is_an_error(self) -> None:
        with pytest.raises(InvalidLockConfig, match="did you mean lock_ttl"):

            class Task(LockedTask):
                lock_tll = 5

    def test_method_that_makes_a_name_is_an_error(self) -> None:
        """It is called without the task: as a class method it may be one."""
        with pytest.raises(InvalidLockConfig, match=r"lock_name is called .*'self'"):

            class Method(LockedTask):
                def lock_name(self, video: int) -> str:
                    return f"v:{video}"

                def run(self, video: int) -> None: ...

        class ClassMethod(LockedTask):
            @classmethod
            def lock_name(cls, video: int) -> str:
                return f"v:{video}"

            def run(self, video: int) -> None: ...

        assert ClassMethod().lock_name_of((7,), {}) == "v:7"

    def test_typo_in_a_mixin_is_an_error(self) -> None:
        class Options:
            lock_tll = 5

        with pytest.raises(InvalidLockConfig, match="did you mean lock_ttl"):

            class Task(Options, LockedTask):
                pass

    @pytest.mark.parametrize("bases", [(Batches, LockedTask), (LockedTask, Batches)])
    def test_class_whose_messages_do_not_reach_the_run_is_an_error(self, bases: Any) -> None:
        """As those of celery-batches, which call the body once for many messages."""
        with pytest.raises(InvalidLockConfig, match=r"task Bulk: .*with lock\(\.\.\.\)"):
            type("Bulk", bases, {})

    @pytest.mark.parametrize("annotated", ["process", "*"])
    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"lock_tll": 5}, "did you mean lock_ttl"),
            ({"on_conflict": "ignore"}, "on_conflict is one of"),
            ({"debounce": 5}, "exclude each other"),
            ({"Strategy": "shop.bulk:strategy"}, "its own Strategy"),
        ],
        ids=["typo", "wrong", "together", "strategy"],
    )
    def test_annotation_that_is_wrong_is_an_error(
        self, annotated: str, options: dict[str, Any], says: str
    ) -> None:
        """The setting ``task_annotations`` changes a task when its app takes it up."""
        annotations = {annotated: options}
        with pytest.raises(InvalidLockConfig, match=says):
            made(annotations=annotations, unique_while="queued")
        assert made(annotations={annotated: {"lock_ttl": 7}}).lock_ttl == 7

    def test_methods_may_have_any_name(self) -> None:
        class Task(LockedTask):
            lock_up: ClassVar[int]

            def lock_video(self) -> None: ...

            @property
            def lock_colour(self) -> str:
                return "red"

        assert issubclass(Task, LockedTask)

    def test_body_may_be_a_static_method_or_take_anything(self) -> None:
        class Static(LockedTask):
            lock_name = "v:{video}"

            @staticmethod
            def run(video: int) -> None: ...

        class Anything(LockedTask):
            lock_name = "v:{video}"
            guard = GUARD

            def run(self, **kwargs: Any) -> None: ...

        assert Static.lock_name == Anything.lock_name
