"""`convrec recommend` and `convrec chat`: ask a model once, or in a session."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from convrec.pipeline.commands import add_command, whole_number
from convrec.project.errors import InputError

if TYPE_CHECKING:
    from convrec.service.recommender import Recommender

CHAMPION = "champion"
_PAGE = "docs/recommender.md"
_NOT_UTF8 = InputError("stdin: not UTF-8; convert the input to UTF-8")


def add(commands: Any) -> None:
    """Add the commands."""
    recommend = add_command(
        commands,
        "recommend",
        _recommend,
        "answer a conversation with a ranked list",
        'convrec recommend "I loved Heat"',
        _PAGE,
    )
    chat = add_command(commands, "chat", _chat, "chat with the model in the terminal", "convrec chat -n 5", _PAGE)
    recommend.add_argument(
        "conversation",
        metavar="CONVERSATION",
        help="a user's message, or `User: …` and `Assistant: …` lines; - reads stdin",
    )
    for command in (recommend, chat):
        command.add_argument("-n", type=whole_number(1), default=20, help="number of items; default: %(default)s")
        command.add_argument(
            "--deny", action="append", default=[], metavar="TITLE", help="never recommend this title; repeatable"
        )
        command.add_argument("--allow", action="append", metavar="TITLE", help="recommend only this title; repeatable")
    recommend.add_argument("--json", action="store_true", help="print one JSON array")
    for command in (recommend, chat):
        command.add_argument(
            "--model",
            metavar="NAME",
            default=CHAMPION,
            help="champion, challenger, models:/NAME@ALIAS or a folder; default: %(default)s",
        )


def _recommend(options: argparse.Namespace) -> None:
    said = _read_stdin() if options.conversation == "-" else options.conversation
    recommender = _open(options.model)
    answer = recommender.recommend(said, options.n, options.deny, options.allow)
    print(answer.to_json() if options.json else answer)


def _open(name: str) -> "Recommender":
    """Return the recommender; a terminal shows a spinner meanwhile, because its libraries take seconds to load."""
    from rich.console import Console

    with Console(stderr=True).status(f"loading {name}"):
        from convrec.registry.recommenders import open_recommender

        return open_recommender(name)


def _read_stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise _NOT_UTF8 from None


def _chat(options: argparse.Namespace) -> None:
    from convrec.service.session import Session

    try:
        recommender = _open(options.model)
        for name in ("deny", "allow"):
            recommender.translator.resolve(f"--{name}", getattr(options, name) or ())
        session = Session(recommender, options.n, options.deny, options.allow)
        print(session.help)
        while not session.is_over:
            print(session.answer(input("> ")))
    except EOFError:
        print()
    except UnicodeDecodeError:
        raise _NOT_UTF8 from None
