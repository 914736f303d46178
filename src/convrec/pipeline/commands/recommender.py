"""`convrec recommend` and `convrec chat`: ask a model once, or in a session."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from convrec.pipeline.commands import ASK, AsJson, app
from convrec.project.errors import InputError

if TYPE_CHECKING:
    from convrec.service.recommender import Recommender

_NOT_UTF8 = InputError("stdin: not UTF-8; convert the input to UTF-8")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Asking:
    """Options of both commands.

    Args:
        n: Number of items.
        deny: Never recommend this title; repeatable.
        allow: Recommend only this title; repeatable.
        model: champion, challenger, models:/NAME@ALIAS or a folder.
    """

    n: Annotated[PositiveInt, Parameter(name="-n")] = 20
    deny: tuple[str, ...] = ()
    allow: tuple[str, ...] | None = None
    model: str = "champion"


_USUAL = Asking()


@app.command(group=ASK)
def recommend(
    conversation: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    asking: Asking = _USUAL,
    as_json: AsJson = False,
) -> None:
    """Answer a conversation with a ranked list (docs/recommender.md).

    Example: convrec recommend "I loved Heat"

    Args:
        conversation: A user's message, or `User: …` and `Assistant: …` lines; - reads stdin.
    """
    said = _read_stdin() if conversation == "-" else conversation
    answer = _open(asking.model).recommend(said, asking.n, asking.deny, asking.allow)
    print(answer.to_json() if as_json else answer)


@app.command(group=ASK)
def chat(*, asking: Asking = _USUAL) -> None:
    """Chat with the model in the terminal (docs/recommender.md).

    Example: convrec chat -n 5
    """
    from convrec.service.session import Session

    try:
        recommender = _open(asking.model)
        for name, titles in (("--deny", asking.deny), ("--allow", asking.allow)):
            recommender.translator.resolve(name, titles or ())
        session = Session(recommender, asking.n, asking.deny, asking.allow)
        print(session.help)
        while not session.is_over:
            print(session.answer(input("> ")))
    except EOFError:
        print()
    except UnicodeDecodeError:
        raise _NOT_UTF8 from None


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
