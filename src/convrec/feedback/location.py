"""Where feedback is kept: the database, and the journals of the services of this project."""

import os
from pathlib import Path

from convrec.errors import InputError
from convrec.feedback.database import checked_url
from convrec.feedback.store import FeedbackStore

URL_VARIABLE = "CONVREC_FEEDBACK_URL"
_SQLITE = "sqlite:///"
DATABASE, JOURNAL = Path("feedback", "feedback.db"), Path("feedback", "journal")  # below the project's folder


def feedback_url(given: str | None = None, root: Path = Path()) -> str:
    """Return the URL of the database: the given one, that of `CONVREC_FEEDBACK_URL`, or `feedback/feedback.db`.

    Raises `InputError`, naming where the URL comes from, for one that cannot be used.
    """
    source, url = ("--feedback", given) if given else (URL_VARIABLE, os.environ.get(URL_VARIABLE))
    if not url:
        return f"sqlite:///{(root / DATABASE).absolute()}"
    try:
        checked_url(url)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    return url


def open_store(root: Path, given: str | None = None) -> FeedbackStore:
    """Return the feedback database of the URL `given`, or the default one (`feedback_url`).

    Raises `InputError` if the URL is wrong, or no feedback was recorded there.
    """
    url = feedback_url(given, root)
    if url.startswith(_SQLITE) and not Path(url.removeprefix(_SQLITE)).is_file():
        raise InputError(
            f"{url.removeprefix(_SQLITE)}: no feedback was recorded; `convrec serve` records it, or name another "
            f"database with {URL_VARIABLE} or --feedback"
        )
    return FeedbackStore(url)
