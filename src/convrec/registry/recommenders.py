"""Opens recommenders by name: registered versions and model folders."""

from pathlib import Path

from convrec.generation.lists import ListSettings
from convrec.generation.model_folders import check_model
from convrec.project.config.params import load_params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.registry.versions import (
    CHALLENGER,
    CHAMPION,
    MODEL_NAME,
    download_version,
    read_version,
)
from convrec.service.model_files import ModelFiles
from convrec.service.recommender import Recommender


def open_recommender(name: str) -> Recommender:
    """Return the recommender of a registered version, or of a model folder with the project's catalog and parameters.

    Raises `InputError` if there is no such version, or the folder contains no model (`find_model`).
    """
    return Recommender.of_files(find_model(name))


def find_model(name: str, downloads: Path | None = None) -> ModelFiles:
    """Return the files of a registered version, or of a model folder with the project's catalog and parameters.

    A version is `champion`, `challenger`, `models:/NAME@ALIAS`, `models:/NAME/VERSION`, or the folder that it was
    downloaded to. `downloads` is a folder for a version's files, which may be removed afterwards. Raises `InputError`
    if there is no such version, or the folder contains no model.
    """
    if name in (CHAMPION, CHALLENGER):
        name = f"models:/{MODEL_NAME}@{name}"
    folder = Path(name)
    if name.startswith("models:/") or (folder / "MLmodel").is_file():
        version = download_version(name, downloads) if name.startswith("models:/") else read_version(folder, name)
        check_model(version.checkpoint, f"--model {name}")
        return ModelFiles(version.checkpoint, version.catalog, version.settings)
    if not (folder / "config.json").is_file():
        raise InputError(
            f"--model {name}: not a model's folder; give one with config.json, `champion`, or models:/NAME@ALIAS"
        )
    params, catalog = load_params(), Paths().catalog
    check_model(folder, f"--model {name}", params.base_model.trust_remote_code)
    if not catalog.is_file():
        raise InputError(f"{catalog}: a model's folder needs the project's catalog; run `dvc repro data` first")
    common, trust = params.common, params.base_model.trust_remote_code
    return ModelFiles(folder, catalog, ListSettings(**params.list_settings()), common.device, trust)
