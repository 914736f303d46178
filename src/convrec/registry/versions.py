"""Registered models: versions of trained checkpoints and their aliases."""

import io
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import mlflow
from mlflow.entities import LoggedModelOutput
from mlflow.entities.model_registry import ModelVersion, RegisteredModel
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.types.schema import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from ruamel.yaml import YAML

from convrec.data.catalog import Catalog
from convrec.project.config.params import Params, load_params
from convrec.project.errors import InputError
from convrec.project.paths import Paths, inside
from convrec.registry.model_card import CHECKPOINT_TAG, GUIDANCE_TAG, MAX_DESCRIPTION, describe_version
from convrec.registry.tracking import PARENT_TAG, connect, data_tags, git_state
from convrec.registry.tracking.describe import DATA_TAGS, VERSIONS, read_versions, version_tags
from convrec.registry.tracking.store import short_message, store_error
from convrec.service.arms import CHALLENGER, CHAMPION

if TYPE_CHECKING:
    from convrec.service.translation import ModelFiles

logger = logging.getLogger(__name__)

MODEL_VARIABLE = "CONVREC_MODEL"  # the registered model's name, where there is no params.yaml
CATALOG_TAG = DATA_TAGS[1]
_CATALOG = "catalog.parquet"
_DESCRIPTION = """Answers a conversation with a ranked list of {items}. A version's page has its model card.
The alias `champion` marks the version that serves users, `challenger` the newest candidate.
The tags `move.000001`, `move.000002`, ... are the history of the champion, oldest first."""
_MIN_SHARED = 0.1  # of the smaller of two catalogs, for a comparison of their models
_PACKAGE = Path(__file__).parents[1]
DEMO = "demo"  # the trained model that comes with the package, in the form of a version
DEMO_FOLDER = _PACKAGE / DEMO
_REQUIRED = (  # packages of the pyfunc
    *("torch", "transformers", "pandas", "pydantic", "pyarrow", "ruamel.yaml"),
    *("rapidfuzz", "safetensors", "scikit-learn", "scipy", "threadpoolctl"),
)
_ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")  # the second: an alias without a version


def model_name() -> str:
    """Return the name of the registered model: CONVREC_MODEL, else that of the project in this folder.

    Raises `InputError` without the variable and params.yaml.
    """
    file = Path("params.yaml").resolve()
    if name := os.environ.get(MODEL_VARIABLE):
        return name
    if not file.is_file():
        raise InputError(f"{file}: no project here; go to its folder, or set {MODEL_VARIABLE} to the registered model")
    return _name_in(file, file.stat().st_mtime_ns)


@lru_cache
def _name_in(file: Path, _changed: int) -> str:
    return load_params(file).registered_model


def registered_model(client: mlflow.MlflowClient, name: str | None = None) -> RegisteredModel | None:
    """Return a registered model, by default the project's, or None."""
    try:
        return client.get_registered_model(name or model_name())
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def alias_version(alias: str, name: str | None = None) -> ModelVersion | None:
    """Return the version of a registered model, by default the project's, that holds this alias, or None.

    Raises as `find_version` if the registry is down.
    """
    client = mlflow.MlflowClient()
    try:
        if registered_model(client, name) is None:  # with accounts, MLflow denies access to its aliases
            return None
        return client.get_model_version_by_alias(name or model_name(), alias)
    except MlflowException as error:
        if error.error_code in _ABSENT:
            return None
        raise store_error(error) from None


def read_aliases(client: mlflow.MlflowClient) -> dict[str, str]:
    """Return the version number of each alias."""
    model = registered_model(client)
    return {} if model is None else {alias: str(number) for alias, number in model.aliases.items()}


def all_versions(client: mlflow.MlflowClient) -> list[ModelVersion]:
    """Return all versions, newest first."""
    found = client.search_model_versions(f"name = '{model_name()}'")
    return sorted(found, key=lambda one: -int(one.version))


def find_version(client: mlflow.MlflowClient, number: str | None = None) -> ModelVersion:
    """Return a version by its number, by default the challenger.

    Raises `InputError` if there is no such version or the registry rejects this user, and `Unavailable` if it is down.
    """
    if number is None:
        return _require(CHALLENGER)
    with _reading(f"models:/{model_name()}/{number}"):
        return client.get_model_version(model_name(), number)


def model_signature() -> ModelSignature:
    """Return the signature of the pyfunc: outputs and parameters. MLflow has no schema for inputs of several types."""
    from convrec.service.translation import LIST_LENGTH  # noqa: PLC0415  (imports torch)

    year = ColSpec(DataType.long, "year", required=False)
    columns = [(DataType.long, "query"), (DataType.long, "rank"), (DataType.string, "title")]
    return ModelSignature(
        outputs=Schema([*(ColSpec(*column) for column in columns), year]),
        params=ParamSchema(
            [
                ParamSpec("n", DataType.long, LIST_LENGTH),
                ParamSpec("deny", DataType.string, [], shape=(-1,)),
                ParamSpec("allow", DataType.string, [], shape=(-1,)),
            ]
        ),
    )


def register(params: Params, paths: Paths, parent_run: str | None, stage: str = "rank_grpo") -> ModelVersion:
    """Register the checkpoint of a training stage as a version with the alias `challenger`, once for the same weights
    and guidance.

    The version contains everything that `mlflow.pyfunc` needs to answer conversations, the parameters and a model card.
    Its run has the versions of the data and the results of the evaluation. Raises `InputError` if the checkpoint or its
    evaluation is missing, or the champion recommends from another catalog (`require_shared_items`).
    """
    experiment = connect(paths.root)
    client = mlflow.MlflowClient()
    for path in (paths.model(stage) / "config.json", paths.results("evaluate"), paths.catalog, paths.split("test")):
        if not path.is_file():
            raise InputError(f"{path}: not made yet; run `dvc repro` first, then register")
    tags, card = describe_version(params, paths, stage, model_name())
    versions = all_versions(client)
    if not versions and (others := other_models(model_name())):
        logger.warning("%s is a new model; %s", model_name(), others)
    require_catalog(paths)
    made_of = (CHECKPOINT_TAG, GUIDANCE_TAG)
    same = (one for one in versions if all(one.tags.get(name) == tags[name] for name in made_of))
    made = next(same, None) or _log_version(client, experiment, params, paths, stage, parent_run, tags, card)
    # An earlier registration may have been interrupted before it set the card or the alias.
    if not client.get_registered_model(model_name()).description:  # a person may have written one
        client.update_registered_model(model_name(), _DESCRIPTION.format(items=params.common.domain.items))
    if not made.description:
        client.update_model_version(model_name(), made.version, description=card[:MAX_DESCRIPTION])
    if all(int(made.version) >= int(other.version) for other in versions):
        client.set_registered_model_alias(model_name(), CHALLENGER, made.version)
    return client.get_model_version(model_name(), made.version)


def _log_version(
    client: mlflow.MlflowClient,
    experiment: str,
    params: Params,
    paths: Paths,
    stage: str,
    parent_run: str | None,
    tags: dict[str, str],
    card: str,
) -> ModelVersion:
    """Log the model in a run of its own, and return the new version, still without description and alias."""
    from convrec.generation.lists import ListSettings  # noqa: PLC0415  (imports torch)

    versions = read_versions(paths.root)
    run_tags = {**git_state(), **version_tags(versions), **({PARENT_TAG: parent_run} if parent_run else {})}
    with (
        redirect_stderr(io.StringIO()),  # hides MLflow's remarks on the logged model; errors are raised
        mlflow.start_run(experiment_id=experiment, run_name="register", tags=run_tags),
        tempfile.TemporaryDirectory() as folder,
    ):
        for name, content in versions.items():
            mlflow.log_text(content.decode(errors="replace"), f"{VERSIONS}/{name}")
        code = shutil.copytree(_PACKAGE, Path(folder) / "convrec", ignore=shutil.ignore_patterns(DEMO, "__pycache__"))
        card_file, params_file = Path(folder) / "model_card.md", Path(folder) / "params.yaml"
        card_file.write_text(card, encoding="utf-8")
        YAML(typ="safe", pure=True).dump(params.model_dump(), params_file)
        files = {"model": paths.model(stage), "catalog": paths.catalog}
        files |= {"model_card": card_file, "params": params_file}
        files |= {"guidance": paths.guidance} if paths.guidance.is_dir() else {}
        info = mlflow.pyfunc.log_model(
            name="recommender",
            python_model=str(_PACKAGE / "service" / "pyfunc_model.py"),
            artifacts={name: str(path) for name, path in files.items()},
            model_config=asdict(ListSettings(**params.list_settings())),
            code_paths=[str(code)],
            signature=model_signature(),
            pip_requirements=[f"{name}=={version(name).split('+')[0]}" for name in _REQUIRED],
            input_example=[f"Which {params.common.domain.items} would you recommend?"],
        )
        mlflow.log_artifact(str(card_file))
        mlflow.log_artifact(str(paths.results("evaluate")))
        if parent_run:  # so that the pipeline's run shows the model, too
            client.log_outputs(parent_run, [LoggedModelOutput(info.model_id, step=0)])
        return mlflow.register_model(info.model_uri, model_name(), tags=tags)  # the tags are set at creation


def require_catalog(paths: Paths) -> None:
    """Raise `InputError` if the champion recommends from another catalog than the project (`require_shared_items`)."""
    connect(paths.root)
    champion = alias_version(CHAMPION)
    if champion is not None and champion.tags.get(CATALOG_TAG) not in (None, data_tags(paths).get(CATALOG_TAG)):
        require_shared_items({str(paths.catalog): Catalog.read(paths.catalog)} | version_catalog(champion))


def other_models(name: str) -> str:
    """Return which other models the registry shows to this user, and how to use one; empty if it shows none."""
    try:
        found = [model.name for model in mlflow.MlflowClient().search_registered_models(max_results=10)]
    except MlflowException:
        return ""
    names = ", ".join(other for other in found if other != name)
    chosen = f"{MODEL_VARIABLE}, or else registry.model in params.yaml, names the model to use"
    return f"the registry also has {names}: {chosen}" if names else ""


def _not_registered(uri: str, why: str) -> InputError:
    name = re.split("[@/]", uri.removeprefix("models:/"))[0]
    listed, newest = "`convrec registry list` shows all versions", alias_version(CHALLENGER, name)
    untried = f"the one that was not promoted answers with --model {CHALLENGER}" if newest else ""
    todo = f"`python -m flows.train` trains and registers a model; --model {DEMO} is the one that comes with convrec"
    told = f"{uri}: not in the registry ({why})"
    return InputError("; ".join(filter(None, [told, listed, untried, todo, other_models(name)])))


def require_shared_items(catalogs: Mapping[str, Catalog]) -> None:
    """Raise `InputError` if the catalogs of two models, by what they are of, have nearly no item in common."""
    (one, own), (other, others) = catalogs.items()
    lines, other_lines = ({str(item) for item in catalog.items} for catalog in (own, others))
    shared, smaller = len(lines & other_lines), min(len(lines), len(other_lines))
    if shared < _MIN_SHARED * smaller:
        raise InputError(
            f"{one} ({len(own):,} items, as {own.items[0]}) and {other} ({len(others):,} items, as {others.items[0]}) "
            f"recommend from different catalogs: they share {shared} items, and cannot be compared; name the "
            f"model of each project in its params.yaml (registry.model), or in {MODEL_VARIABLE} where it is set"
        )


def version_catalog(version: ModelVersion) -> dict[str, Catalog]:
    """Return the catalog of a version, by its name, for `require_shared_items`."""
    uri = f"models:/{version.name}/{version.version}"
    with tempfile.TemporaryDirectory() as folder, _reading(uri):
        file = mlflow.artifacts.download_artifacts(f"{uri}/artifacts/{_CATALOG}", dst_path=folder)
        return {f"version {version.version} of {version.name}": Catalog.read(Path(file))}


def _require(alias: str, name: str | None = None) -> ModelVersion:
    """Return the version with an alias; raises `InputError` without one."""
    version = alias_version(alias, name)
    if version is None:
        raise _not_registered(f"models:/{name or model_name()}@{alias}", f"no version is the {alias}")
    return version


@contextmanager
def _reading(uri: str) -> Iterator[None]:
    """Raise the error for a version that cannot be read; it counts as missing only if the registry says so."""
    try:
        yield
    except MlflowException as error:
        is_absent = error.error_code in _ABSENT
        raise (_not_registered(uri, short_message(error)) if is_absent else store_error(error)) from None


def read_version(folder: Path, uri: str) -> "ModelFiles":
    """Return the files in the folder of a version; raises `InputError` if the model is not from this project."""
    from convrec.generation.lists import ListSettings  # noqa: PLC0415  (imports torch)
    from convrec.service.translation import ModelFiles  # noqa: PLC0415  (imports torch)

    try:
        flavor = Model.load(folder).flavors["python_function"]
        found = flavor["artifacts"]
        files = {name: inside(folder, found[name]["path"], f"{uri}: the path of its {name}") for name in found}
        checkpoint, catalog, settings = files["model"], files["catalog"], ListSettings(**flavor["config"])
        if not (checkpoint.is_dir() and catalog.is_file()):
            raise FileNotFoundError(checkpoint)
    except (MlflowException, OSError, KeyError, TypeError):
        raise InputError(
            f"{uri}: this version has no checkpoint and catalog; give one that this project registered"
        ) from None
    return ModelFiles(checkpoint, catalog, settings, guidance=files.get("guidance"))


def download_version(uri: str, folder: Path | None = None) -> "ModelFiles":
    """Return the files of a registered version: `models:/NAME/VERSION` or `models:/NAME@ALIAS`.

    They are copied below `folder`; without it, to a temporary folder that stays, or read where they are if the registry
    is local. Raises `InputError` if there is no such version or it has no checkpoint of this project, and `Unavailable`
    if the registry is down.
    """
    connect()
    if uri.endswith(f"@{CHAMPION}"):
        _require(CHAMPION, uri.removeprefix("models:/").removesuffix(f"@{CHAMPION}"))
    with _reading(uri):
        files = mlflow.artifacts.download_artifacts(uri, dst_path=None if folder is None else str(folder))
    return read_version(Path(files), uri)


def champion_or_newest() -> str:
    """Return what `--model` takes: the champion, or else, with a log line, the newest. Raises `InputError` for none."""
    connect()
    if alias_version(CHAMPION) is not None:
        return CHAMPION
    client, name = mlflow.MlflowClient(), model_name()
    if not (numbers := [str(version.version) for version in all_versions(client)]):
        todo = f"run `python -m flows.train`, or ask the packaged model: --model {DEMO}"
        raise InputError("; ".join(filter(None, [f"{name}: no version is registered; {todo}", other_models(name)])))
    number, is_challenger = numbers[0], read_aliases(client).get(CHALLENGER) == numbers[0]
    text = "No champion yet: this is version %s, the newest one%s. `convrec promote` decides on it."
    logger.warning(text, number, " (challenger)" if is_challenger else "")
    return CHALLENGER if is_challenger else f"models:/{name}/{number}"


def served_versions(with_challenger: bool) -> dict[str, str]:
    """Return the version number of the champion and, if wanted, of its possible replacement, by role.

    The replacement is the challenger, else the latest version, unless that is the champion. Raises `InputError` if
    there is no champion, and `Unavailable` if the registry is down.
    """
    connect()
    champion = _require(CHAMPION)
    served = {CHAMPION: str(champion.version)}
    if with_challenger:
        for other in (alias_version(CHALLENGER), all_versions(mlflow.MlflowClient())[0]):
            if other is not None and other.version != champion.version:
                served.setdefault(CHALLENGER, str(other.version))
    return served
