"""Downloads from the Hugging Face hub, and clear errors for its failures."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from convrec.project.errors import InputError, NoSpace

DEFAULT_REVISION = "main"
_TIMEOUT = 20  # seconds


@contextmanager
def hub_errors(kind: str, name: str, revision: str) -> Iterator[None]:
    """Raise errors of the hub as `InputError` with the remedy, and a full disk as `NoSpace`."""
    import httpx  # noqa: PLC0415  (with the hub's library)
    from huggingface_hub import constants, errors  # noqa: PLC0415  (slow)

    remedies = {
        errors.GatedRepoError: "gated; accept its terms on {hub}, and give a token of that account in HF_TOKEN",
        errors.RepositoryNotFoundError: "not found on {hub}; check the name (OWNER/NAME) and whether it is a dataset or"
        " a model, and give HF_TOKEN if it is private",
        errors.RevisionNotFoundError: f"it has no branch, tag or commit {revision}",
        errors.HFValidationError: "{error}",
    }
    unreached = "could not be fetched from {hub} ({error}); check the network, HF_ENDPOINT, HF_HUB_OFFLINE"
    try:
        yield
    except (httpx.HTTPError, OSError, errors.HFValidationError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise NoSpace(f"{kind} {name}: no space left on the device; free some space and fetch again") from None
        text = next((text for cause, text in remedies.items() if isinstance(error, cause)), unreached)
        problem = text.format(hub=constants.ENDPOINT, error=" ".join(str(error).split())[:300])
        raise InputError(f"{kind} {name}: {problem}") from None


def cached_model(name: str, patterns: list[str]) -> Path:
    """Return the folder of a hub's model, NAME or NAME@REVISION, in the hub's own cache; what is not there is fetched.

    Raises `InputError` where the hub cannot give it.
    """
    from huggingface_hub import snapshot_download  # noqa: PLC0415  (slow)

    repository, _, revision = name.partition("@")
    with hub_errors("model", repository, revision or DEFAULT_REVISION):
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=patterns))


def latest_commit(name: str) -> str:
    """Return the latest commit of a hub's model, to pin it. Raises `InputError` if the hub does not give the model."""
    from huggingface_hub import HfApi  # noqa: PLC0415  (slow)

    with hub_errors("model", name, DEFAULT_REVISION):
        return str(HfApi().model_info(name, timeout=_TIMEOUT).sha)


def model_license(name: str, revision: str | None) -> str:
    """Return the license of a hub's model that this account can fetch.

    Raises `InputError` if the hub cannot be reached, or does not give the model to this account.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415  (slow)

    api = HfApi()
    with hub_errors("model", name, revision or DEFAULT_REVISION):
        api.auth_check(name)
        card = api.model_info(name, revision=revision, timeout=_TIMEOUT).card_data
    return str(card.license) if card is not None and card.license else "not stated"
