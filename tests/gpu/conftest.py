"""Tests of what a GPU changes. Without one, they run on the CPU with smaller sizes, or are skipped with the reason.

`make test-gpu` runs this folder alone and reads no conftest.py above it. It needs pytest and the extra `gpu`.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from convrec.project.machine import limit_threads

limit_threads()  # before torch is imported

import torch  # noqa: E402

HAS_GPU = torch.cuda.is_available()
INSTALL = "pip install -e '.[gpu]'"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests of a GPU where there is none: it is the one thing that `make test-tools` cannot install."""
    for item in items:
        if item.get_closest_marker("gpu") and not HAS_GPU:
            item.add_marker(pytest.mark.skip(reason=f"needs an NVIDIA GPU: torch {torch.__version__} finds none"))


@pytest.fixture(scope="session")
def device() -> str:
    """`cuda` where there is a GPU, else `cpu`."""
    return "cuda" if HAS_GPU else "cpu"


@pytest.fixture(scope="session")
def python_with() -> Callable[[str], str]:
    """Returns the Python that has a library of the extra `gpu`; skips the test where there is none.

    It is this Python, or without a GPU the one that `make test-tools` installs.
    """

    def find(library: str) -> str:
        if importlib.util.find_spec(library) is not None:
            return sys.executable
        if HAS_GPU:
            pytest.skip(f"needs {library}: {INSTALL}")
        from tests import tools  # noqa: PLC0415  (what it imports is not part of the extra)

        python = tools.find("vLLM")
        if python is None:
            pytest.skip(f"needs {library}: {INSTALL}, or without a GPU `make test-tools`")
        return python

    return find


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """The folder of the tiny model."""
    from tests.training.rl.tiny import make_tiny_model  # noqa: PLC0415  (10 s to import)

    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def figure(record_property) -> Callable[[str], None]:
    """Shows a measured figure at the end of the run."""
    return lambda text: record_property("figure", text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the measured figures."""
    reports = terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", [])
    figures = [text for report in reports for name, text in report.user_properties if name == "figure"]
    if figures:
        terminalreporter.section("figures")
        for text in figures:
            terminalreporter.write_line(text)
