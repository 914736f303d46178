"""A local registry with versions of untrained models, for the tests of promotion."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import mlflow
import pandas as pd
from mlflow.models import Model

from convrec.data.conversations import write_rows
from convrec.generation.lists import ListSettings
from convrec.project.paths import Paths
from convrec.registry import tracking
from convrec.registry import versions as registry
from convrec.registry.model_card import CHECKPOINT_TAG, checkpoint_digest
from convrec.registry.moves import promote_version, read_state
from tests.rows import make_row
from tests.service.recommending import CATALOG, TITLES, save_model
from tests.small_project import ROOT, SHRUNK, set_params

SIZE, NUM_PROMPTS = 4, 12
SETTINGS = ListSettings("Recommend {list_length} films.", SIZE, 64, 1.3, 256)


def make_workspace(folder: Path) -> Path:
    """Write parameters, policy and data of twelve prompts."""
    for name in ("params.yaml", "promotion.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, folder)
    common = {"list_length": SIZE, "cutoffs": [2, SIZE], "device": "cpu"}
    set_params(folder, {**SHRUNK, "common": common})
    set_params(folder, {"baselines": {"names": ["popularity"]}}, "promotion.yaml")
    rows = []
    for number in range(NUM_PROMPTS):
        liked, said = [(TITLES[number], 1975 + 3 * number)], f"a film with heists please, number {number}"
        rows.append(make_row(f"p{number}", liked, said, conversation_id=str(number), date="2022-01-01"))
    for split in ("train", "validation", "test"):
        write_rows(pd.DataFrame(rows), Paths(folder).split(split))
    CATALOG.to_frame().to_parquet(Paths(folder).catalog)
    return folder


def create_name(client: mlflow.MlflowClient) -> None:
    """Make the registered model, which versions without files need."""
    client.create_registered_model(registry.model_name())


def add_version(client: mlflow.MlflowClient, **tags: str) -> str:
    """Register a version without files, and return its number."""
    made = client.create_model_version(registry.model_name(), source="mlflow-artifacts:/nowhere", tags=tags)
    return str(made.version)


def save_version(folder: Path, seed: int) -> Path:
    """Write an untrained model with its files, in the layout of `registry.register`, and return its checkpoint."""
    checkpoint = save_model(folder / "artifacts" / "model", seed)
    CATALOG.to_frame().to_parquet(folder / "artifacts" / "catalog.parquet")
    artifacts = {"model": {"path": "artifacts/model"}, "catalog": {"path": "artifacts/catalog.parquet"}}
    description = Model()
    description.add_flavor("python_function", loader_module="none", artifacts=artifacts, config=asdict(SETTINGS))
    description.save(folder / "MLmodel")
    return checkpoint


def register_model(client: mlflow.MlflowClient, folder: Path, seed: int) -> str:
    """Register such a version, and return its number."""
    checkpoint = save_version(folder, seed)
    if not client.search_registered_models():
        create_name(client)
    run = client.create_run(tracking.connect())
    tags = {CHECKPOINT_TAG: checkpoint_digest(checkpoint)}
    made = client.create_model_version(registry.model_name(), folder.as_uri(), run.info.run_id, tags=tags)
    client.set_registered_model_alias(registry.model_name(), registry.CHALLENGER, made.version)
    return str(made.version)


def promote_in_turn(client: mlflow.MlflowClient, *versions: str) -> None:
    """Let each of these versions become the champion."""
    for version in versions:
        promote_version(client, read_state(client), version, "ops", f"version {version} is better")


def moves_of(client: mlflow.MlflowClient) -> list[dict]:
    """Return the log of the champion's moves."""
    tags = client.get_registered_model(registry.model_name()).tags
    return [json.loads(tags[name].rpartition("\n")[2]) for name in sorted(tags) if name.startswith("move.")]
