"""What one store says for a page, or in words why that is not known: its locks, in Django's own
change list, and what happened to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.contrib.admin.views.main import ChangeList
from django.http import Http404, HttpRequest
from django.utils.translation import gettext, gettext_lazy, gettext_noop

from .._engine.service import LockService, locks
from .._values.arguments import checked_name, is_name
from .._values.lock_info import Event, LockInfo
from .._values.owner import Owner
from .._values.words import duration, printable
from ..exceptions import InvalidLockConfig, ListingNotSupported, StoreUnavailable, TaskLockError
from ..models import Lock
from ..operators.events import moment, seen_events, why, within
from ..operators.held import digest_of
from ..operators.holders import Holder, holder_of, states_of, who
from .parts import lock_url, shortened, task_link

# Locks that a page reads, the soonest to expire first: more would take too long.
MOST_LOCKS = 1000
# What leaves an operator without an answer. An import fails where a task's module needs what only
# its worker has.
NOT_KNOWN = (TaskLockError, InvalidLockConfig, ImportError)
MOST_EVENTS, MOST_OF_LOCK = 100, 20  # of one page
KINDS = (
    gettext_noop("refused"), gettext_noop("skipped"), gettext_noop("waited"), gettext_noop("lost"),
    gettext_noop("cleared"), gettext_noop("taken over"), gettext_noop("given up"),
    gettext_noop("adopted"), gettext_noop("held"),
)  # fmt: skip


@dataclass
class Reading:
    """The locks of a store that a search has found.

    ``total`` counts all locks of the store; None where it did not say. ``more``: it has more than
    `MOST_LOCKS`, and ``found`` may lack some that match. ``problem`` says why there is no answer,
    and ``silent`` that the store did not give one.
    """

    found: list[LockInfo] = field(default_factory=list)
    total: int | None = None
    more: bool = False
    problem: str = ""
    silent: bool = False


def read(alias: str, query: str) -> Reading:
    """Return the locks that match ``query``: an exact name, the beginning of one with ``*`` behind
    it, or words of name, task, task id, host, process id and operator."""
    reading = Reading()
    try:
        service = locks.using(alias)
        query = query.strip()
        # Also where the store does not list it: a key that other code has set.
        exact = service.get(query) if is_name(query) else None
        reading.found = [exact] if exact else []
        some = service.list(limit=MOST_LOCKS)
        reading.total = len(some) if len(some) < MOST_LOCKS else service.count()
        reading.more = reading.total > MOST_LOCKS
        if reading.more and is_name(beginning := query.removesuffix("*")):
            some += service.list(beginning, MOST_LOCKS)
        by_key = {info.key: info for info in some if _matches(info, query)}
        reading.found += [info for key, info in by_key.items() if not exact or key != exact.key]
    except NOT_KNOWN as error:
        reading.problem = problem_of(error)
        reading.silent = not isinstance(error, ListingNotSupported)
    return reading


def _matches(info: LockInfo, query: str) -> bool:
    if query.endswith("*"):
        return info.name.startswith(query[:-1])
    owner = info.owner
    texts = (
        info.name, owner.task, owner.task_id, owner.host, owner.pid, owner.held_by, owner.reason,
    )  # fmt: skip
    said = " ".join(str(text) for text in texts if text is not None).lower()
    return all(word in said for word in query.lower().split())


def problem_of(error: Exception) -> str:
    """Return a sentence for an operator: why there is no answer."""
    match error:
        case ListingNotSupported():
            words = gettext(
                "The store “%(store)s” cannot list its locks. "
                "Search for a lock’s exact name to see that lock."
            )
        case StoreUnavailable():
            words = gettext("The store “%(store)s” is unavailable: %(reason)s")
        case ImportError():
            words = gettext("The tasks cannot be imported here: %(reason)s")
        case _:
            return str(error)
    return words % {"reason": error, **vars(error)}


def lock_of(info: LockInfo) -> Lock:
    """Return the row of a lock; its id means the lease that holds it now."""
    lock = Lock.named(info.store, info.name, digest_of(info))
    lock.info = info
    return lock


def seen_lock(lock_id: str) -> Lock:
    """Return the lock of an id, with what holds it now, and without ``info`` if that is not the
    lease which the id means. Raises `Http404` for no id of a lock, and `TaskLockError`."""
    try:
        store, name, digest = Lock.parts_of(lock_id)
        service = locks.using(store)
        seen = [checked_name(name)], lambda each: digest_of(each) == digest
        info = service.store.find_lease(*seen) if digest else service.get(name)
    except ValueError as error:
        raise Http404(str(error)) from error
    return Lock.named(store, name, digest) if info is None else lock_of(info)


class Rows(list[Lock]):
    """Locks as the change list has them. It is a list, and no queryset, though Django takes it for
    one.

    Beside a list's own, Django asks for this alone: `filter`, when an action is chosen; `_clone`,
    for a list of one page; the names of the model, for the text that counts the locks of an action.
    """

    verbose_name = Lock._meta.verbose_name
    verbose_name_plural = Lock._meta.verbose_name_plural

    def filter(self, *, pk__in: Sequence[str]) -> Rows:
        """Return the ticked locks as their stores know them now.

        Raises `TaskLockError`: to an operator who is about to clear, no answer must not look like
        no lock. Raises `Http404` for a value of no box.
        """
        return Rows(map(seen_lock, dict.fromkeys(pk__in)))

    def _clone(self) -> Rows:
        return self


# The states by which the list is narrowed: a word of `states_of`, for the address, and its label.
STATES: Mapping[str, Any] = {
    "": gettext_lazy("all"),
    "gone": gettext_lazy(Holder.GONE.value),
    "overdue": gettext_lazy(Holder.OVERDUE.value),
    "waiting": gettext_lazy("waited for"),
    "held": gettext_lazy("held"),
    "cooling": gettext_lazy(Holder.COOLING.value),
    "detached": gettext_lazy(Holder.DETACHED.value),
    "operator": gettext_lazy("a hold"),
}


class LockChangeList(ChangeList):
    """Narrows what was read to a state and a task, and orders it: what needs attention first, then
    by age."""

    # What `LockAdmin.get_queryset` returns.
    root_queryset: Reading  # type: ignore[assignment]

    def get_queryset(self, request: HttpRequest, *_: Any) -> Rows:  # type: ignore[override]
        self.filter_specs, self.has_filters, self.has_active_filters = [], False, False
        self.reading = self.root_queryset
        rows: list[Any] = [*map(lock_of, self.reading.found)]
        for lock in rows:
            info, lock.holder = lock.info, holder_of(lock.info)
            lock.began = None if info.cooling else info.acquired_at
            states = {"", *states_of(info, lock.holder)}
            lock.words = {"state": states, "task": {"", info.owner.task}}
        # What needs attention stands first, in this order.
        first = ("gone", "overdue", "waiting")
        rows.sort(key=lambda each: (each.began is None, each.began, each.name))
        rows.sort(key=lambda each: [word not in each.words["state"] for word in first])
        self.chosen = {each: request.GET.get(each, "") for each in ("state", "task")}
        self.states = self._choices(rows, "state", STATES)
        names = sorted({lock.info.owner.task for lock in rows} - {None})
        tasks = {"": gettext("all tasks"), **{name: shortened(name) for name in names}}
        self.tasks = self._choices(rows, "task", tasks)
        return Rows(lock for lock in rows if self._fits(lock, *self.chosen))

    def _fits(self, lock: Any, *filters: str) -> bool:
        return all(self.chosen[each] in lock.words[each] for each in filters)

    def _choices(self, rows: list[Any], name: str, labels: Mapping[str, Any]) -> list[Any]:
        """What can be chosen of one filter, with how many locks there are of what the other one
        lets through."""
        chosen, found = self.chosen[name], []
        others = [lock for lock in rows if self._fits(lock, *({*self.chosen} - {name}))]
        for word in dict.fromkeys([*labels, chosen]):
            count = sum(word in lock.words[name] for lock in others)
            if count or word in ("", chosen):
                url, label = self.get_query_string({name: word or None}), labels.get(word, word)
                found.append({"label": label, "count": count, "url": url, "chosen": word == chosen})
        return found

    def get_results(self, request: HttpRequest) -> None:
        # Locks go while somebody looks at the last page.
        pages = -(-len(self.queryset) // self.list_per_page)
        self.page_num = max(1, min(self.page_num, pages))
        super().get_results(request)
        # Where they are equal, no page says how many were found.
        known = not (self.reading.more or self.reading.silent)
        self.full_result_count = self.reading.total if known else self.result_count


def history(request: HttpRequest, alias: str, query: str = "", **of: str | None) -> dict[str, Any]:
    """Return what the template of a table of events needs: of all locks, of those with a ``query``,
    which is a lock's name or a task id, or ``of`` a ``name``, or a ``task_id``.
    """
    context: dict[str, Any] = {"with_names": "name" not in of}
    try:
        service = locks.using(alias)
        if not service.store.supports_history:
            words = gettext("The store “%(store)s” keeps no history.")
            return context | {"events_problem": words % {"store": printable(alias)}}
        found = seen_events(service, **of, limit=MOST_OF_LOCK) if of else _search(service, query)
        return context | {"events": [_cells(request, event) for event in found]}
    except NOT_KNOWN as error:
        return context | {"events_problem": problem_of(error)}


def _search(service: LockService, query: str) -> list[Event]:
    found = seen_events(service, query, limit=MOST_EVENTS) if is_name(query) else []
    return found or seen_events(service, None, query or None, MOST_EVENTS)


def _cells(request: HttpRequest, event: Event) -> dict[str, str]:
    """The event as the table shows it: ``who`` is the one to whom it happened, ``by`` is who had
    the lock, or who did it."""
    holder = event.holder or Owner()
    by = printable(event.by or "") or (who(holder) if event.holder else "")
    seconds = "" if event.seconds is None else duration(event.seconds)
    times = f"\N{MULTIPLICATION SIGN} {event.count:,} / {within(event)}"
    return {
        "when": moment(event.at),
        "kind": gettext(event.kind),
        "times": times if event.count > 1 else seconds,
        "name": printable(event.name),
        "url": lock_url(request, event.store, event.name),
        "who": who(event.owner),
        "task": shortened(event.owner.task or ""),
        "task_id": task_link(event.owner.task_id),
        "by": by,
        "by_task": shortened(holder.task or ""),
        "by_task_id": task_link(holder.task_id),
        "why": printable(why(event)),
    }
