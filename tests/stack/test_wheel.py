"""The installed package outside a checkout: `convrec init` writes a project, and both tutorials run word for word."""

import os
import re
import shutil
import site
import subprocess
import sys
import venv

import pytest

from tests.small_project import ROOT, make_project, own_environment, run_in

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The folder of programs of an environment with the wheel, and the packages of this one, without its convrec."""
    folder = tmp_path_factory.mktemp("installed")
    source = make_project(folder / "source")  # a build leaves files in its folder
    for name in ("LICENSE", "README.md", "configs", "pyproject.toml", "setup.py"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source], check=True)
    venv.create(folder / "venv", with_pip=False)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "parent.pth").write_text("\n".join(site.getsitepackages()))  # in which no .pth is read
    (wheel,) = folder.glob("*.whl")
    python = ["--python", str(folder / "venv" / "bin" / "python")]
    subprocess.run([*pip, *python, "install", "-q", "--no-deps", "--ignore-installed", wheel], check=True)
    return folder / "venv" / "bin"


def _commands(heading):
    """Return the commands of a section of docs/adapting.md."""
    text = (ROOT / "docs" / "adapting.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {heading}\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"^ {4}(\S.*)", section, re.MULTILINE)


@pytest.mark.parametrize("heading", ["Your conversations", "Your log"])
def test_a_tutorial_runs_word_for_word_in_an_empty_folder(heading, programs, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    path = f"{programs}{os.pathsep}{own_environment()['PATH']}"
    outputs = {
        command: run_in(tmp_path, "sh", "-c", command, timeout=1800, PATH=path).stdout for command in _commands(heading)
    }
    sampled, begun, split, fits, trained, asked = outputs.values()
    assert "new files" in sampled and "a new project: " in begun and "Everything fits" in fits
    graph = (tmp_path / "dvc.yaml").read_text()
    assert "- requirements.txt\n" in graph and "- src/" not in graph
    assert "version 1 (challenger)" in trained and re.search(r"\n +1 ", asked)
