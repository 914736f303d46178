"""Recommenders by name, and the models that a service follows in the registry."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import mlflow

from convrec.data.catalog import Catalog
from convrec.generation.lists import ListSettings
from convrec.generation.model_folders import check_model
from convrec.project.config.params import load_params
from convrec.project.errors import InputError
from convrec.project.paths import Paths, path_of
from convrec.registry.experiment import running_experiment
from convrec.registry.versions import (
    CHALLENGER,
    CHAMPION,
    DEMO,
    DEMO_FOLDER,
    download_version,
    model_name,
    read_version,
    require_shared_items,
    served_versions,
)
from convrec.service.arms import Experiment
from convrec.service.recommender import Recommender
from convrec.service.served import ServedModel
from convrec.service.translation import ModelFiles


def open_recommender(name: str) -> Recommender:
    """Return the recommender of a registered version, or of a model folder with the project's catalog and parameters.

    Raises `InputError` if there is no such version, or the folder contains no model (`find_recommender`).
    """
    return Recommender.load(find_recommender(name))


def find_recommender(name: str, downloads: Path | None = None) -> ModelFiles:
    """Return the files of a registered version, or of a model folder with the project's catalog and parameters.

    A version is `champion`, `challenger`, `models:/NAME@ALIAS`, `models:/NAME/VERSION`, `demo` (the one that comes with
    the package), or the folder that it was downloaded to. `downloads` is a folder for a version's files, which may be
    removed afterwards. Raises `InputError` if there is no such version, or the folder contains no model.
    """
    if name in (CHAMPION, CHALLENGER):
        name = f"models:/{model_name()}@{name}"
    folder = DEMO_FOLDER if name == DEMO else path_of(name, "--model")
    if name.startswith("models:/") or (folder / "MLmodel").is_file():
        version = download_version(name, downloads) if name.startswith("models:/") else read_version(folder, name)
        check_model(version.checkpoint, f"--model {name}")
        return version
    if not (folder / "config.json").is_file():
        raise InputError(
            f"--model {name}: not a model's folder; give `champion`, `challenger`, `demo`, models:/NAME@ALIAS, "
            "or a folder with config.json"
        )
    params, catalog = load_params(), Paths().catalog
    trust, settings = params.base_model.trust_remote_code, ListSettings(**params.list_settings())
    check_model(folder, f"--model {name}", trust)
    if not catalog.is_file():
        raise InputError(f"{catalog}: a model's folder needs the project's catalog; run `dvc repro data` first")
    return ModelFiles(folder, catalog, settings, params.common.device, trust, Paths().guidance)


class RegistrySource:
    """Follows the aliases of the registry; a model that is named in `model` or `challenger` stays.

    Without `model`, the champion is followed, and its possible replacement unless `challenger` is given. The role of a
    model that stays is its name. `challenger` may be `none`; with the champion alone, the challenger of the running
    experiment is loaded beside it.
    """

    def __init__(
        self, model: str | None, challenger: str | None, make_served: Callable[[str, ModelFiles], ServedModel]
    ):
        """Raise `InputError` if both models are the same."""
        if model is not None and model == challenger:
            raise InputError(f"--challenger {challenger}: this is the same as the first model; give another, or `none`")
        self._model, self._challenger, self._make_served = model, challenger, make_served
        self._catalog: dict[str, Catalog] = {}  # of the model that was loaded last, by its name
        self.experiment: Experiment | None = None  # running against the champion, when `wanted` was last called

    def wanted(self) -> dict[str, str]:
        """Return the version, or the name, of each role, as `LiveModels` needs it."""
        if self._model is None:
            roles = served_versions(with_challenger=self._challenger is None)
            if self._challenger == "none":
                self.experiment = running_experiment(mlflow.MlflowClient(), roles[CHAMPION])
                if self.experiment is not None:
                    roles[CHALLENGER] = self.experiment.challenger
        else:
            roles = {self._model: self._model}
        if self._challenger not in (None, "none"):
            roles[str(self._challenger)] = str(self._challenger)
        return roles

    def load(self, version: str) -> ServedModel:
        """Return a model with its engine, after its first list.

        Raises `InputError` if its catalog has next to no item of that of the model before (`require_shared_items`).
        """
        name = f"models:/{model_name()}/{version}" if version.isdecimal() else version
        with tempfile.TemporaryDirectory(prefix="convrec-version-") as folder:
            files = find_recommender(name, Path(folder))
            if self._catalog and name not in self._catalog:
                require_shared_items(self._catalog | {name: Catalog.read(files.catalog)})
            served = self._make_served(version, files)
        served.warm()
        self._catalog = {name: served.translator.catalog}
        return served
