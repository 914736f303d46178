"""The commands of `convrec`, each a function whose signature and docstring are its options and its help.

What a command needs is imported when it runs, so that `convrec --help` and a mistake are answered at once.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Group, Parameter, Token
from cyclopts.validators import Number

from convrec import __version__
from convrec.project.paths import Paths

if TYPE_CHECKING:
    from convrec.project.config.params import Params

ASK, PIPELINE, MEASURE, WATCH, REGISTRY = (
    Group.create_ordered(title)
    for title in (
        "Ask a model",
        "Run and change the pipeline",
        "Measure and compare",
        "Watch the service",
        "Registry and tracking",
    )
)
app = App(
    name="convrec",
    help="Train, test and serve small language models that recommend from conversations.\n\n"
    "`python -m flows.train` runs the whole pipeline with params.yaml, registers the model, and promotes it.",
    version=f"convrec {__version__}",
    default_parameter=Parameter(negative=(), show_default=lambda value: value or None),
    exit_on_error=False,
    print_error=False,
    verbose=False,
)


def add_group(name: str, group: Group, text: str, **options: Any) -> App:
    """Return a command with subcommands, which say what they do themselves; `text` is its help."""
    made = App(name=name, help=text, group=group, **options)
    app.command(made)
    return made


def _read_whole(_type: object, tokens: Sequence[Token]) -> int:
    """Return a whole number; cyclopts would also take 0x10 and 1_000, and round 2.6."""
    if not re.fullmatch("-?[0-9]{1,18}", tokens[0].value):
        raise ValueError  # cyclopts says that it cannot convert the text
    return int(tokens[0].value)


# Options of several commands.
Whole = Annotated[int, Parameter(converter=_read_whole)]
PositiveInt = Annotated[Whole, Parameter(validator=Number(gte=1))]
NonNegativeInt = Annotated[Whole, Parameter(validator=Number(gte=0))]
UInt32 = Annotated[Whole, Parameter(validator=Number(gte=0, lte=2**32 - 1))]
Port = Annotated[Whole, Parameter(validator=Number(gte=0, lte=65535))]
AsJson = Annotated[bool, Parameter(name="--json", help="Print JSON.")]
By = Annotated[str | None, Parameter(help="Name of the person who decides; default: the user's name.")]
FeedbackUrl = Annotated[
    str | None,
    Parameter(
        name="--feedback",
        metavar="URL",
        help="The feedback database; default: CONVREC_FEEDBACK_URL, or feedback/feedback.db.",
    ),
]
Settings = Annotated[
    list[str] | None,
    Parameter(name="--set", metavar="KEY=VALUE", help="Change a parameter, such as data.path=../redial; repeatable."),
]
Share = Annotated[float, Parameter(validator=Number(gt=0, lte=1))]


def _check_version(_type: object, text: str | None) -> None:
    if text is not None and not (text.isascii() and text.isdigit() and text[0] != "0"):
        raise ValueError("Give the number of a version, as `convrec registry list` shows it.")


Version = Annotated[str, Parameter(metavar="N", validator=_check_version)]


def project() -> "tuple[Params, Paths]":
    """Return the parameters and the paths of the project in this folder."""
    from convrec.project.config.params import load_params

    return load_params(), Paths()


@app.command(name="--print-completion")
def print_completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print a completion script."""
    print(app.generate_completion(shell=shell))
