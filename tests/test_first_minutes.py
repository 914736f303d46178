"""What a newcomer meets first: the installation, the packaged model, and the requests that the documentation shows."""

import re
import shutil
import subprocess
from pathlib import Path

import nbformat
import pytest
from safetensors import safe_open

from convrec.cli import load_commands
from convrec.registry.recommenders import open_recommender
from convrec.registry.versions import DEMO, DEMO_FOLDER
from convrec.service.reasons import EXAMPLES, example_requests
from tests.small_project import ROOT

MAX_BYTES = 9_000_000
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"
FIRST, LEAST_FITTING = 10, 8  # items of a list


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The packaged model, opened in a folder without a project."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("empty"))
        yield open_recommender(DEMO)
        assert not list(Path().iterdir()), "it writes nothing"


def test_the_packaged_model_is_small_and_says_what_it_is():
    assert sum(path.stat().st_size for path in DEMO_FOLDER.rglob("*") if path.is_file()) <= MAX_BYTES
    with safe_open(DEMO_FOLDER / "model" / "model.safetensors", "numpy") as weights:
        names = weights.keys()
        assert {weights.get_slice(name).get_dtype() for name in names} == {"F16"}
    card = (DEMO_FOLDER / "model_card.md").read_text()
    for words in ("simulated users", "with seed ", "License: Apache-2.0", "**Rank-GRPO**: NDCG@20 0.", "float16"):
        assert words in card


def test_the_packaged_model_answers_from_its_catalog(demo):
    (weight, *_) = demo._engine._model.parameters()
    assert str(weight.dtype) == "torch.float32" and demo.translator.guide is not None
    answer = demo.recommend(EXAMPLES[0].text, n=5, reasons=True)
    assert len(answer) == 5 and all(demo.catalog.find(item.title, item.year) is not None for item in answer)
    assert any(item.reasons for item in answer)


def test_the_packaged_model_answers_the_examples_well(demo):
    assert example_requests(demo.catalog, demo.translator.reasons, demo.noun) == [one.text for one in EXAMPLES[:4]]
    for example, answer in zip(EXAMPLES, demo.recommend([one.text for one in EXAMPLES], n=FIRST), strict=True):
        items = [demo.catalog.items[demo.catalog.find(item.title, item.year)] for item in answer]
        assert sum(map(example.fits, items)) >= LEAST_FITTING, f"{example.text}: {', '.join(map(str, items))}"


def test_no_list_breaks_the_rule_of_a_group_of_users(demo):
    ratings = {str(item): item.metadata["rating"] for item in demo.catalog.items}
    family = [title for title, rating in ratings.items() if rating in ("rated G", "rated PG")]
    texts = ["The bloodiest slasher that is rated R, please", *(one.text for one in EXAMPLES)]
    for answer in demo.recommend(texts, n=20, allow=family):
        assert {ratings[str(item)] for item in answer} <= {"rated G", "rated PG"} and len(answer) == 20
    assert "rated R" in {ratings[str(item)] for item in demo.recommend(texts[0], n=20)}


def test_the_documentation_and_the_help_show_only_these_requests():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    texts = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in pages}
    texts["help"] = "".join(command.help for command in load_commands().subapps if command.help)
    requests = r'(?:recommend\(?\[? ?|"conversation": |"inputs": )"([^"]+)"'
    shown = {(page, request) for page, text in texts.items() for request in re.findall(requests, text)}
    assert {"README.md", "docs/recommender.md", "help"} <= {page for page, _ in shown}
    assert not {(page, request) for page, request in shown if request not in {one.text for one in EXAMPLES}}


def test_the_notebook_has_small_outputs_without_errors_or_paths_of_a_machine():
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run in order, once"
    assert all(cell.outputs for cell in cells[1:]), "the first only opens the model"
    assert {output.output_type for cell in cells for output in cell.outputs} <= {"execute_result", "display_data"}
    assert NOTEBOOK.stat().st_size < 60_000
    text = "\n".join(
        str(part) for cell in cells for one in cell.outputs for kind, part in one.data.items() if "/png" not in kind
    )
    assert not re.search(r"(^|[\s\"'=:(])(/\w+){2,}|[A-Z]:\\\\", text) and "NaN" not in text


def _install(folder: Path, uv_status: int | None) -> list[str]:
    """Return the calls of the installers in an empty folder, with stand-ins for Python, pip and uv."""
    log, programs, python = folder / "log", folder / "programs", folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    programs.mkdir()
    (programs / "touch").symlink_to(str(shutil.which("touch")))
    stand_ins = {programs / "python3": "exit 0", python: f'echo "pip $*" >> {log}'}
    if uv_status is not None:
        stand_ins[programs / "uv"] = f'echo "uv $*" >> {log}; exit {uv_status}'
    for path, command in stand_ins.items():
        path.write_text(f"#!/bin/sh\n{command}\n")
        path.chmod(0o755)
    for _ in range(2):  # the second time, all is there
        command = [str(shutil.which("make")), "--directory", str(ROOT), f"VENV={folder / 'venv'}", "install"]
        subprocess.run(command, env={"PATH": str(programs)}, check=True, capture_output=True)
    return log.read_text().splitlines()


@pytest.mark.parametrize(("uv_status", "installers"), [(None, ["pip"]), (0, ["uv"]), (2, ["uv", "pip"])])
def test_uv_installs_where_it_is_there_and_pip_where_it_fails(tmp_path, uv_status, installers):
    calls = _install(tmp_path, uv_status)
    assert [call.split()[0] for call in calls] == installers
    assert all(call.endswith("-c requirements/constraints.txt -e .[embedders,server]") for call in calls)


@pytest.mark.parametrize(
    ("target", "extras"),
    [("try", "embedders,server"), ("demo", "embedders,server"), ("test", "dev"), ("check", "dev"), ("test-ci", "dev")],
)
def test_only_tests_and_checks_install_what_they_need(tmp_path, target, extras):
    command = ["make", "--dry-run", "--directory", str(ROOT), f"VENV={tmp_path}", target]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert set(re.findall(r"-e '\.\[(.*?)\]'", printed)) == {extras}
