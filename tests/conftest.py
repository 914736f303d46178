import os
from pathlib import Path

import pytest
from hypothesis import settings

from convrec.data.catalog import Catalog, Item

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
settings.register_profile("project", deadline=None)  # a busy machine would miss any
settings.load_profile("project")


@pytest.fixture
def catalog() -> Catalog:
    """Five films, two of them remakes of one title."""
    return Catalog(
        [
            Item("Heat", 1995, {"genres": "crime, drama", "keywords": "heist"}),
            Item("Dune", 1984, {"genres": "sci-fi", "keywords": "desert"}),
            Item("Dune", 2021, {"genres": "sci-fi", "keywords": "desert"}),
            Item("Up", 2009, {"genres": "animation", "keywords": "jungle"}),
            Item("Alien", 1979, {"genres": "horror, sci-fi", "keywords": "space"}),
        ]
    )


@pytest.fixture
def redial() -> Path:
    """The folder of real ReDial files, below the folder that CONVREC_TEST_DATA names."""
    folder = Path(os.environ.get("CONVREC_TEST_DATA", "no such folder")) / "redial"
    if not folder.is_dir():
        pytest.skip("real ReDial files are needed: set CONVREC_TEST_DATA to the folder above `redial`")
    return folder.resolve()
