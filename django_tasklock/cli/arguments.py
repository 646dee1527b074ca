"""The arguments of ``manage.py locks`` and its verbs; each verb's help has examples."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from django.core.management.base import CommandParser

from ..conf import DEFAULT_ALIAS
from ..ordering import ORDERS
from .doctor import doctor
from .explain import explain_task
from .listing import list_locks
from .parsing import VerbParser, count, exit_status, pause, seconds
from .run import HELD_ELSEWHERE, LOST, OUTAGE, run_command
from .verbs import clear_locks, show_lock

__all__ = ["add_verbs"]


def add_verbs(parser: CommandParser) -> None:
    """Add the verbs to the command's parser; the chosen one is ``options["verb"]``, a function."""
    verbs = parser.add_subparsers(
        title="verbs",
        metavar="VERB",
        required=True,
        parser_class=VerbParser,
    )

    def add(
        name: str,
        verb: Callable[..., None],
        summary: str,
        examples: str,
        formats: Sequence[str] = ("table", "json"),
    ) -> CommandParser:
        verb_parser: CommandParser = verbs.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb_parser.set_defaults(verb=verb)
        verb_parser.add_argument(
            "--store",
            default=DEFAULT_ALIAS,
            metavar="ALIAS",
            help="the store's alias in the setting TASKLOCK (default: %(default)s)",
        )
        if formats:
            verb_parser.add_argument(
                "--format",
                choices=formats,
                default="table",
                help="how to show what is found (default: %(default)s)",
            )
        _accept_after_verb(verb_parser)
        return verb_parser

    parser_of_list = add(
        "list",
        list_locks,
        "Show the live locks, the soonest to expire first.",
        "  manage.py locks list\n"
        "  manage.py locks list video:\n"
        "  manage.py locks list --task 'videos.*' --expiring 30 --watch\n"
        "  manage.py locks list --queued\n"
        "  manage.py locks list --format json | jq -r '.[].name'",
        ["table", "json", "csv"],
    )
    parser_of_list.add_argument(
        "prefix", nargs="?", default="", metavar="PREFIX", help="only names that begin with it"
    )
    _add_choices(parser_of_list)
    parser_of_list.add_argument(
        "--queued",
        action="store_true",
        help="not the locks, but the jobs that a message in the queue is reserved for "
        "(unique_while): calls of them are duplicates",
    )

    parser_of_show = add(
        "show",
        show_lock,
        "Show all that is known of one lock. Exits 1 if it is not locked.",
        "  manage.py locks show video:123\n"
        "  manage.py locks show video:123 --format json | jq .owner.task_id",
    )
    parser_of_show.add_argument("name", metavar="NAME")

    parser_of_clear = add(
        "clear",
        clear_locks,
        "Remove locks by force. Whoever waits for one may take it at once, even while its "
        "holder still works. Exits 1 if a lock that was named is not locked.",
        "  manage.py locks clear video:123 video:124\n"
        "  manage.py locks clear --prefix video: --dry-run\n"
        "  manage.py locks clear --owner-gone\n"
        "  manage.py locks clear --queued --task videos.tasks.process\n"
        "  manage.py locks clear --all --noinput",
    )
    parser_of_clear.add_argument("names", nargs="*", metavar="NAME")
    parser_of_clear.add_argument(
        "--prefix", metavar="P", help="every lock whose name begins with it; asks first"
    )
    parser_of_clear.add_argument(
        "--task", metavar="TASK", help="every lock of this task (with * and ?); asks first"
    )
    parser_of_clear.add_argument(
        "--owner-gone",
        action="store_true",
        help="every lock whose process ran on this machine and is gone; asks first",
    )
    parser_of_clear.add_argument("--all", action="store_true", help="every lock; asks first")
    parser_of_clear.add_argument(
        "--queued",
        action="store_true",
        help="not the locks, but the reservations of the queue (unique_while): the next call is "
        "sent, though another message of the same job may still wait",
    )
    parser_of_clear.add_argument(
        "--dry-run", action="store_true", help="say what would be cleared, and clear nothing"
    )
    parser_of_clear.add_argument(
        "--noinput",
        "--no-input",
        action="store_false",
        dest="interactive",
        help="do not ask",
    )

    parser_of_doctor = add(
        "doctor",
        doctor,
        "Find lost work, locks whose owner is gone, keys without a TTL, and servers that may "
        "lose locks. Exits 1 if anything is wrong.",
        "  manage.py locks doctor\n"
        "  manage.py locks doctor --requeue\n"
        "  */5 * * * *  manage.py locks doctor --format json || mail -s locks ops",
    )
    parser_of_doctor.set_defaults(store=None)
    parser_of_doctor.add_argument(
        "--requeue", action="store_true", help="send the tasks of lost rows again; safe twice"
    )

    parser_of_explain = add(
        "explain",
        explain_task,
        "Say which lock a call of a task would take, and why.",
        "  manage.py locks explain videos.tasks.process '[123]'\n"
        "  manage.py locks explain videos.tasks.process '{\"video_id\": 123}'",
    )
    parser_of_explain.add_argument("task_name", metavar="TASK")
    parser_of_explain.add_argument(
        "arguments",
        nargs="?",
        default="[]",
        metavar="ARGS",
        help="the call's arguments: a JSON array, or an object of names and values",
    )

    parser_of_run = add(
        "run",
        run_command,
        "Run a command under a lock. Of all hosts that try while it runs, one runs it; after its "
        "end the next one may. If the lock is lost, the command gets SIGTERM, and SIGKILL a "
        "little later. If this process is killed, all that the command has started is killed "
        "with it. Exits with the command's own status, or 128 + the signal that ended it; "
        f"{HELD_ELSEWHERE}: somebody else holds the lock; {OUTAGE}: its store did not answer; "
        f"{LOST}: the lock was lost while the command ran.",
        "  manage.py locks run nightly-report -- ./report.sh --mail\n"
        "  0 3 * * *  manage.py locks run backup --conflict-exit-code 0 -v 0 -- /opt/backup\n"
        "  manage.py locks run deploy --ttl 30 --wait 600 -- ./deploy.sh",
        (),
    )
    _add_run(parser_of_run)


def _add_choices(parser: CommandParser) -> None:
    parser.add_argument("--task", metavar="TASK", help="only of this task (with * and ?)")
    parser.add_argument(
        "--owner", metavar="OWNER", help="only of this host, host:pid or pid (with * and ?)"
    )
    parser.add_argument(
        "--expiring", type=seconds, metavar="SECONDS", help="only what expires within them"
    )
    parser.add_argument(
        "--sort",
        choices=ORDERS,
        default="ttl",
        help="the soonest to expire first by default; --sort -age: the oldest first",
    )
    parser.add_argument("--limit", type=count, metavar="N", help="at most so many")
    parser.add_argument(
        "--watch",
        type=pause,
        nargs="?",
        const=2.0,
        metavar="SECONDS",
        help="again and again, every 2 seconds unless said otherwise, until Ctrl-C",
    )
    parser.add_argument(
        "--scan",
        action="store_true",
        help="walk through the whole store: finds keys too that no lease set",
    )


def _add_run(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--ttl", type=float, metavar="SECONDS", help="of the lease, which is renewed meanwhile"
    )
    parser.add_argument(
        "--wait",
        type=float,
        nargs="?",
        default=0,
        metavar="SECONDS",
        help="for the lock, if it is held; without a number: for ever (default: do not wait)",
    )
    parser.add_argument(
        "--conflict-exit-code",
        type=exit_status,
        default=HELD_ELSEWHERE,
        metavar="N",
        help="the exit status if somebody else holds the lock (default: %(default)s)",
    )
    parser.add_argument(
        "--kill-after",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="between SIGTERM and SIGKILL when the lock is lost (default: %(default)g)",
    )
    parser.add_argument("argv", nargs="+", metavar="COMMAND")


def _accept_after_verb(parser: CommandParser) -> None:
    """Take Django's own options after the verb too, where everybody writes them."""
    own: Any = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    for option in ("--settings", "--pythonpath"):
        parser.add_argument(option, **own)
    parser.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3], **own)
    for flag in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
        parser.add_argument(flag, action="store_true", **own)
