"""Ways to declare a task and to send its call: one task for each, with the options named here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from celery import Celery

from tests.stage import ledger
from tests.stage.scripted import Boom, Step, perform


class Way(NamedTuple):
    """How a task is declared and called."""

    task: Mapping[str, Any] = {}
    """its options; ``base`` names a class of `tests.stage.tasks`"""
    call: Mapping[str, Any] = {}
    """those of a call"""
    seen: Mapping[str, Any] = {}
    """what each run sees of them (see `seen_of`)"""
    script: tuple[Step, ...] = ({},)
    """what its runs do, if none is killed"""
    ends: int = 1
    """how many of them come to the end of the body"""
    unique: bool = True
    """whether ``unique_while`` concerns it"""


RETRIES: Any = {"max_retries": 5, "countdown": 0}
WAYS: dict[str, Way] = {
    "plain": Way(),
    "without acks_late": Way({"acks_late": False}),
    "serializer": Way({"serializer": "pickle"}, script=({"set": {1}},)),
    "call's serializer": Way(call={"serializer": "pickle"}, script=({"set": {1}},)),
    "compression": Way(call={"compression": "gzip"}, seen={"compression": "application/x-gzip"}),
    "ignore_result": Way({"ignore_result": True}, seen={"ignore_result": True}),
    "call's ignore_result": Way(call={"ignore_result": True}, seen={"ignore_result": True}),
    "priority": Way(call={"priority": 3}, seen={"priority": 3}),
    "task's priority": Way({"priority": 6}, seen={"priority": 6}),
    "expires": Way(call={"expires": 300}, seen={"expires": True}),
    "link": Way(call={"link": True}, unique=False),
    "headers": Way(call={"headers": {"trace_mark": "kept"}}, seen={"trace_mark": "kept"}),
    "argsrepr": Way(call={"argsrepr": "(hidden)"}, seen={"argsrepr": "(hidden)"}),
    "shadow": Way(call={"shadow": "shown"}, seen={"shadow": "shown"}),
    "stamps": Way(
        call={"stamped_headers": ["of"], "of": "a user"}, seen={"stamps": {"of": "a user"}}
    ),
    "time limits": Way(
        call={"time_limit": 60, "soft_time_limit": 50}, seen={"timelimit": [60, 50]}
    ),
    "hooks": Way({"base": "LockedHooked"}, seen={"prepared": True, "received": True}),
    "own request": Way({"base": "OwnBefore"}),
    "autoretry_for": Way(
        {"autoretry_for": (Boom,), "retry_kwargs": RETRIES}, script=({"then": "raise"}, {})
    ),
    "throw=False": Way(script=({"then": "retry on"}, {}), ends=2),
}  # fmt: skip


def seen_of(request: Any) -> dict[str, Any]:
    """What a run sees of the options of its call, and of what was done before its body."""
    names = ("trace_mark", "argsrepr", "shadow", "stamps", "ignore_result", "compression")
    return {
        **{name: getattr(request, name, None) for name in (*names, "timelimit")},
        "priority": request.delivery_info.get("priority"),
        "expires": request.expires is not None,
        "prepared": hasattr(request, "prepared"),
        "received": hasattr(request, "received"),
    }


def body(task: Any, job: int, script: list[Step] | None = None) -> str:
    ledger.write("seen", job=job, **seen_of(task.request))
    return perform(task, job, script)


def options_of(way: Way, app: Celery, label: str) -> dict[str, Any]:
    """The options of a call; its callback notes the ``label``."""
    link = {"link": app.signature("collect", args=(label,))} if way.call.get("link") else {}
    return {**way.call, **link}
