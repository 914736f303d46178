"""What GitHub, git and readers look up in the repository: workflow, forms of issues, hooks, the list of the docs."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"


@pytest.mark.parametrize(("schema", "pattern"), [("workflows", "workflows/*"), ("issue-forms", "ISSUE_TEMPLATE/*")])
def test_the_files_fit_github_s_schema(schema, pattern):
    files = [str(path) for path in GITHUB.glob(pattern)]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.github-{schema}", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert files and done.returncode == 0, done.stdout


def test_the_workflow_calls_targets_and_installs_the_locked_torch():
    steps = YAML(typ="safe").load(GITHUB / "workflows" / "ci.yml")["jobs"]["check"]["steps"]
    runs = [step["run"] for step in steps if "run" in step]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = [run.removeprefix("make ") for run in runs if run.startswith("make ")]
    assert called == ["check", "test"] and set(called) < targets
    pattern = re.search("grep '(.+?)' (\\S+?)\\)", runs[0])
    lines = (ROOT / pattern[2]).read_text().splitlines()
    assert len([line for line in lines if re.match(pattern[1], line)]) == 1


def test_the_hooks_are_the_commands_of_make_check():
    hooks = YAML(typ="safe").load(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    commands = [shlex.split(hook["entry"])[:2] for hook in hooks]
    recipe = (ROOT / "Makefile").read_text().partition("\ncheck:")[2]
    assert commands == [[".venv/bin/ruff", "check"], [".venv/bin/ruff", "format"]]
    assert all(f"\t{' '.join(['ruff', name])}" in recipe for _, name in commands)


def test_the_list_of_the_docs_has_every_page_once_in_a_group():
    text = (ROOT / "docs" / "README.md").read_text()
    groups = dict(part.partition("\n")[::2] for part in text.split("\n## ")[1:])
    listed = {name: re.findall(r"^\| \[(\S+)\]\(\1\)", groups[name], re.MULTILINE) for name in list(groups)[:4]}
    assert list(listed) == ["Start", "Train", "Operate", "Look up"]
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert sorted(sum(listed.values(), [])) == sorted(pages)


def test_dependencies_stand_once_and_none_of_development_alone_is_imported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    names = {group: {re.match(r"[\w.-]+", one)[0] for one in own} for group, own in groups.items()}
    assert sum(map(len, groups.values())) == len(set().union(*names.values()))
    texts = (path.read_text() for folder in ("src", "flows", "tasks") for path in (ROOT / folder).rglob("*.py"))
    imported = {name for text in texts for name in re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE)}
    development = {name.replace("-", "_") for name in names["dev"]} - {"convrec"}
    assert {"polars", "networkx"} <= imported and not imported & development
