import logging
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import settings
from playwright.sync_api import Browser, sync_playwright

from convrec.cli import main
from convrec.data.catalog import Catalog, Item
from convrec.data.quarantine import Quarantine
from convrec.project.machine import keep_freed_memory, limit_threads
from tests.servers import ROWS, Servers, running
from tests.tools import require
from tests.training.rl.launches import run_program

NIGHTLY = {"browser", "gpu_python", "servers"}  # fixtures whose tests run at night, unless marked `slow`

limit_threads(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))  # before any test imports torch
keep_freed_memory()
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("CONVREC_MODEL", "convrec-movies")  # where a test has no params.yaml
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's shell ignores it
settings.register_profile("project", deadline=None, derandomize=True)  # a busy machine would miss any deadline
settings.load_profile("project")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as nightly by their fixtures, and start the longest files first.

    Started last, such a file would keep one process busy after the others have ended.
    """
    long = set()
    for item in items:
        fixtures, tiers = set(getattr(item, "fixturenames", ())), {marker.name for marker in item.iter_markers()}
        if NIGHTLY & fixtures and "slow" not in tiers:
            item.add_marker("nightly")
        if {"trained", *NIGHTLY} & fixtures or {"slow", "nightly"} & tiers:
            long.add(item.path)
    items.sort(key=lambda item: item.path not in long)


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
def quarantine() -> Quarantine:
    return Quarantine()


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The test's own folder, entered."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


@pytest.fixture
def cli(capsys) -> Iterator[Callable[..., Ended]]:
    """Runs a command of convrec in this process: `cli("data", "--force")`."""

    def run(*arguments: object) -> Ended:
        status: object = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as ended:
            status = ended.code or 0
        return Ended(int(str(status)), *capsys.readouterr())

    formatters = [(handler, handler.formatter) for handler in logging.getLogger().handlers]
    yield run
    signal.signal(signal.SIGINT, signal.default_int_handler)  # an interrupted command ignores it until it has ended
    for handler, formatter in formatters:  # `convrec serve` logs as JSON
        handler.setFormatter(formatter)


@pytest.fixture(autouse=True)
def own_store() -> None:
    """Let each test record into the store of its folder: MLflow notes the one before, and where its runs' files are."""
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    if tracking := sys.modules.get("mlflow.tracking._tracking_service.utils"):
        tracking._artifact_repos_cache.clear()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Let what a test draws without a generator of its own be the same each time."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory) -> Path:
    """MLflow's database without a run, to be copied: MLflow takes seconds to make its tables."""
    from mlflow import MlflowClient  # noqa: PLC0415  (seconds to import)

    database = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{database}").search_experiments(max_results=1)
    return database


@pytest.fixture(scope="session")
def make_store(empty_store) -> Callable[[Path], Any]:
    """Makes the empty local store of a project, points MLflow at it, and returns its client."""
    from mlflow import MlflowClient  # noqa: PLC0415  (seconds to import)

    from convrec.registry.tracking import connect  # noqa: PLC0415

    def make(project: Path) -> MlflowClient:
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        (project / "mlruns").mkdir()
        shutil.copy(empty_store, project / "mlruns")
        connect(project)
        return MlflowClient()

    return make


@pytest.fixture
def redial() -> Path:
    """The folder of real ReDial files, below the folder that CONVREC_TEST_DATA names."""
    folder = Path(os.environ.get("CONVREC_TEST_DATA", "no such folder")) / "redial"
    if not folder.is_dir():
        pytest.skip("real ReDial files are needed: set CONVREC_TEST_DATA to the folder above `redial`")
    return folder.resolve()


@pytest.fixture(scope="session")
def gpu_python() -> str:
    """The Python of an environment with the libraries of a GPU machine, in builds for a CPU."""
    return require("vLLM")


@pytest.fixture(scope="session")
def run_module(gpu_python: str) -> Callable[..., None]:
    """Runs a module with that Python: `run_module("tests.training.rl.tiny_vllm", "--steps", 4)`; it must succeed."""
    return lambda module, *options: run_program([gpu_python, "-m", module, *map(str, options)])


@pytest.fixture(scope="module")  # in a session's, asyncio.run would fail in all later files of the worker
def browser() -> Iterator[Browser]:
    """Headless Chromium, which speaks to no host by itself."""
    chromium = require("Chromium")
    quiet = ["--disable-background-networking", "--no-first-run", "--disable-component-update", "--disable-sync"]
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu", *quiet])
        yield found
        found.close()


@pytest.fixture(scope="module")  # its servers work all the time: they stop before other files are tested
def servers() -> Iterator[Servers]:
    """The servers of docker-compose.yml on free ports; who stops one starts it again."""
    with running(*(name for row in ROWS for name in row)) as found:
        yield found
