import shutil
from pathlib import Path

import pytest

from tests.service.recommending import CATALOG, save_model
from tests.small_project import ROOT


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A project's folder with parameters, a catalog and a model."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(ROOT / "params.yaml", folder)
    (folder / "data" / "processed").mkdir(parents=True)
    CATALOG.to_frame().to_parquet(folder / "data" / "processed" / "catalog.parquet")
    save_model(folder / "model")
    return folder
