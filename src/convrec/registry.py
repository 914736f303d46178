"""Registered models: versions of the trained checkpoint, and which of them is the champion."""

import json
import logging
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.types.schema import ColSpec, DataType, ParamSchema, ParamSpec, Schema

from convrec.config import Params
from convrec.errors import InputError
from convrec.evaluate_models import answers
from convrec.evaluation.scoring import mean_scores
from convrec.generation.lists import Settings
from convrec.paths import Paths
from convrec.recommender import LIST_LENGTH
from convrec.stages.files import read_json, read_test_rows
from convrec.tracking import PARENT_TAG, connect, file_md5, git_state, record_versions

logger = logging.getLogger(__name__)

MODEL_NAME = "convrec-recommender"
CHALLENGER, CHAMPION = "challenger", "champion"
_PACKAGE = Path(__file__).parent
_CHECKPOINT, _CATALOG = Path("artifacts") / "rank_grpo", Path("artifacts") / "catalog.parquet"  # in a version


@dataclass(frozen=True)
class RegisteredModel:
    """The files of a registered version: a Hugging Face folder, a canonical catalog, and how it answers."""

    checkpoint: Path
    catalog: Path
    settings: Settings


@dataclass(frozen=True)
class Decision:
    """What promotion decided, and why."""

    promoted: bool
    reason: str


def checkpoint_digest(model: Path) -> str:
    """Return the MD5 of the checkpoint's weights, which tells whether it is registered already."""
    return " ".join(file_md5(path) for path in sorted(model.glob("*.safetensors")))


def _latest(client: mlflow.MlflowClient, digest: str) -> ModelVersion | None:
    found = client.search_model_versions(f"name = '{MODEL_NAME}'")
    same = [v for v in found if v.tags.get("checkpoint.md5") == digest]
    return max(same, key=lambda v: int(v.version)) if same else None


def alias_version(alias: str) -> ModelVersion | None:
    """Return the version that holds this alias, or None."""
    client = mlflow.MlflowClient()
    try:
        return client.get_model_version_by_alias(MODEL_NAME, alias)
    except MlflowException:
        return None


def aliases_of(number: str) -> list[str]:
    """Return the aliases of a version, sorted."""
    aliases = mlflow.MlflowClient().get_registered_model(MODEL_NAME).aliases
    return sorted(alias for alias, holder in aliases.items() if str(holder) == str(number))


def _signature() -> ModelSignature:
    """Return what the pyfunc answers, and its parameters; MLflow has no schema for an input of several kinds."""
    year = ColSpec(DataType.long, "year", required=False)
    columns = [(DataType.long, "query"), (DataType.long, "rank"), (DataType.string, "title")]
    return ModelSignature(
        outputs=Schema([*(ColSpec(*column) for column in columns), year, ColSpec(DataType.double, "score")]),
        params=ParamSchema(
            [
                ParamSpec("n", DataType.long, LIST_LENGTH),
                ParamSpec("deny", DataType.string, [], shape=(-1,)),
                ParamSpec("allow", DataType.string, [], shape=(-1,)),
            ]
        ),
    )


def register(params: Params, paths: Paths, parent_run: str | None) -> ModelVersion:
    """Register the Rank-GRPO checkpoint as a version with the alias `challenger`, once for the same weights.

    The version carries its test metrics, the data's hashes, and what `mlflow.pyfunc` needs to answer conversations.
    """
    experiment = connect(paths.root)
    client = mlflow.MlflowClient()
    model = paths.model("rank_grpo")
    digest = checkpoint_digest(model)
    known = _latest(client, digest)
    if known is not None:
        return known
    tags = {PARENT_TAG: parent_run} if parent_run else {}
    packages = ("torch", "transformers", "pandas", "pydantic", "pyarrow", "ruamel.yaml")
    with mlflow.start_run(experiment_id=experiment, run_name="register", tags={**git_state(), **tags}) as run:
        record_versions(run.info.run_id, paths.root)
        info = mlflow.pyfunc.log_model(
            name="recommender",
            python_model=str(_PACKAGE / "pyfunc_model.py"),
            artifacts={"model": str(model), "catalog": str(paths.catalog)},
            model_config=asdict(Settings.of(params)),
            code_paths=[str(_PACKAGE)],
            signature=_signature(),
            pip_requirements=[f"{name}=={version(name)}" for name in packages],
            registered_model_name=MODEL_NAME,
            input_example=["something with heists, please"],
        )
    number = str(info.registered_model_version)
    metrics = read_json(paths.metrics("evaluate"))
    version_tags: dict[str, Any] = {
        "checkpoint.md5": digest,
        "test.md5": file_md5(paths.split("test")),
        "catalog.md5": file_md5(paths.catalog),
        "n_rows": metrics["n_rows"],
        **{f"test.{k}": v for k, v in metrics["rank_grpo"].items() if k.startswith(("ndcg", "recall", "in_cat"))},
    }
    for key, value in version_tags.items():
        client.set_model_version_tag(MODEL_NAME, number, key, str(value))
    client.set_registered_model_alias(MODEL_NAME, CHALLENGER, number)
    return client.get_model_version(MODEL_NAME, number)


def promote(challenger: ModelVersion, metric: str, champion_score: float | None) -> Decision:
    """Give the alias `champion` to the challenger if it beats the champion on the same test split.

    `champion_score` is the champion's score on the challenger's test split; None where there is no champion.
    The decision is written to the challenger's version.
    """
    client = mlflow.MlflowClient()
    champion = alias_version(CHAMPION)
    score, where = float(challenger.tags[f"test.{metric}"]), f"on the same {challenger.tags['n_rows']} test rows"
    if champion is not None and champion.version == challenger.version:
        return Decision(False, f"version {challenger.version} is the champion already")
    if champion is None or champion_score is None:
        decision = Decision(True, f"there was no champion; {metric} {score:.4f}")
    elif score > champion_score:
        reason = f"{metric} {score:.4f} beats {champion_score:.4f} of version {champion.version} {where}"
        decision = Decision(True, reason)
    else:
        reason = f"{metric} {score:.4f} does not beat {champion_score:.4f} of version {champion.version} {where}"
        decision = Decision(False, reason)
    if decision.promoted:
        client.set_registered_model_alias(MODEL_NAME, CHAMPION, challenger.version)
    client.set_model_version_tag(MODEL_NAME, challenger.version, "promotion", json.dumps(vars(decision)))
    return decision


def _not_registered(uri: str, why: str) -> InputError:
    return InputError(
        f"{uri}: not in the registry ({why}); `python -m flows.train` trains and registers a model; else name a "
        "model's folder"
    )


def _download(uri: str) -> Path:
    try:
        return Path(mlflow.artifacts.download_artifacts(uri))
    except MlflowException as error:
        raise _not_registered(uri, str(error).splitlines()[0][:200]) from None


def read_version(folder: Path, uri: str) -> RegisteredModel:
    """Return what the folder of a version holds; raises `InputError` for a model that is not this project's."""
    checkpoint, catalog = folder / _CHECKPOINT, folder / _CATALOG
    if not (checkpoint.is_dir() and catalog.is_file()):
        raise InputError(f"{uri}: this version holds no checkpoint at {_CHECKPOINT}; name one that this project made")
    settings = Settings(**Model.load(folder).flavors["python_function"]["config"])
    return RegisteredModel(checkpoint, catalog, settings)


def download_version(uri: str) -> RegisteredModel:
    """Return the files of a registered version: `models:/NAME/VERSION` or `models:/NAME@ALIAS`.

    Raises `InputError` where there is no such version, or it holds no checkpoint of this project.
    """
    connect()
    return read_version(_download(uri), uri)


def download_checkpoint(uri: str) -> Path:
    """Return the Hugging Face folder of a registered version, as `download_version` does all of its files."""
    return download_version(uri).checkpoint


def compared_versions() -> dict[str, str]:
    """Return the URIs of the champion and of what may replace it, by name: the challenger, else the latest version.

    Raises `InputError` where there is no champion.
    """
    connect()
    champion, challenger = alias_version(CHAMPION), alias_version(CHALLENGER)
    if champion is None:
        raise _not_registered(f"models:/{MODEL_NAME}@{CHAMPION}", "no version is the champion")
    found = mlflow.MlflowClient().search_model_versions(f"name = '{MODEL_NAME}'")
    latest = max(found, key=lambda version: int(version.version))
    named = {f"champion, version {champion.version}": champion}
    for other in (challenger, latest):
        if len(named) == 1 and other is not None and other.version != champion.version:
            named[f"challenger, version {other.version}"] = other
    return {name: f"models:/{MODEL_NAME}/{version.version}" for name, version in named.items()}


def champion_score(params: Params, paths: Paths, metric: str) -> float | None:
    """Return the champion's score on the present test split, None where there is no champion.

    A champion that was tested on other data answers the present test split first: only scores on the same rows
    can be compared.
    """
    champion = alias_version(CHAMPION)
    if champion is None:
        return None
    rows, _ = read_test_rows(params, paths)
    tags = champion.tags
    same_rows = (tags.get("test.md5"), tags.get("n_rows")) == (file_md5(paths.split("test")), str(len(rows)))
    if same_rows and f"test.{metric}" in tags:
        return float(tags[f"test.{metric}"])
    logger.info("the champion, version %s, was tested on other data: it is tested again", champion.version)
    model = download_version(f"models:/{MODEL_NAME}/{champion.version}")
    return mean_scores(answers(model.checkpoint, model.settings, rows, params, paths).scores)[metric]
