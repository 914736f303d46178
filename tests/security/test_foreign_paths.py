"""Names from configurations, listings and command lines stay below their folders."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.data.csv_files import scan_csv
from convrec.data.json_lines import numbered_lines
from convrec.data.parquet import parquet_columns
from convrec.generation.fetch import fetch
from convrec.pipeline.evaluate_models import evaluation_name
from convrec.pipeline.memory import with_settings
from convrec.project.config.params import load_params
from convrec.project.errors import InputError
from convrec.project.paths import inside, is_below
from convrec.project.yaml import read_yaml
from convrec.registry.versions import read_version
from convrec.service.app.keys import Keys
from convrec.training.launch import Nodes, launch

HOSTILE = ["../x", "a/../../x", "/etc/passwd", "..", "..\\x", "", "a\0b"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_lead_out_are_refused(tmp_path, name):
    assert not is_below(name)
    with pytest.raises(InputError, match="file = .* is outside"):
        inside(tmp_path, name, "file")


@given(st.lists(st.sampled_from(["a", "..", ".", "b c", "…", "...", "/", "a..b"]), max_size=5).map("/".join))
def test_what_is_below_is_never_elsewhere(name):
    if is_below(name):
        root = Path("/some/folder")
        assert Path(os.path.normpath(root / name)).is_relative_to(root)


OUTSIDE, SECRET = "'../x' is outside its folder", "contains a user, a password or a query"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("data.catalog", "../x", OUTSIDE),
        ("sft.launch", "../x", OUTSIDE),
        ("rank_grpo.launch", "../x", OUTSIDE),
        ("demonstrations.teacher.base_url", "https://user:secret@host/v1", SECRET),
        ("demonstrations.teacher.base_url", "https://host/v1?api-key=secret", SECRET),
        ("rank_grpo.vllm_server_base_url", "http://:secret@host:8000", SECRET),
    ],
)
def test_parameters_that_lead_out_and_addresses_with_secrets_are_refused(field, value, message):
    with pytest.raises(InputError, match=f"{field}: {message}") as refused:
        with_settings(load_params(), {field: value})
    assert "secret" not in str(refused.value)


def test_a_launch_file_outside_configs_is_refused(here, monkeypatch):
    for folder in ("configs", "data"):
        (here / folder).mkdir()
    for name in ("configs/own.yaml", "data/foreign.yaml"):
        (here / name).touch()
    (here / "configs" / "link.yaml").symlink_to(here / "data" / "foreign.yaml")
    for name in ("data/foreign.yaml", "configs/link.yaml"):
        with pytest.raises(InputError, match=f"sft.launch = '{name}' is outside configs/"):
            launch("sft", name, 2, Nodes())
    launched: list[Any] = []
    monkeypatch.setattr("accelerate.commands.launch.launch_command", launched.append)
    assert launch("sft", "configs/own.yaml", 2, Nodes()) == 0
    assert [options.config_file for options in launched] == ["configs/own.yaml"]


@pytest.mark.parametrize("read", [Keys, read_yaml, scan_csv, parquet_columns, lambda path: next(numbered_lines(path))])
def test_a_pipe_is_refused_at_once(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe: a pipe or a device; give a regular file"):
        read(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["../../x", "/etc", "models:/../../x", "..", "a\0b", "..."])
def test_evaluations_stay_in_their_folder(name):
    made = evaluation_name(name, "test", None)
    assert is_below(made) and "/" not in made


@pytest.mark.parametrize("name", ["../escaped", "/escaped", "a/../../escaped"])
def test_a_hub_that_lists_names_that_lead_out_is_refused(tmp_path, monkeypatch, name):
    class Hub:
        def dataset_info(self, *_, **__):
            return SimpleNamespace(sha="a" * 40, siblings=[SimpleNamespace(rfilename=name, size=1)])

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    with pytest.raises(InputError, match="the hub lists '.*escaped', which leads out of"):
        fetch("dataset", "owner/films", tmp_path / "films")
    assert list(tmp_path.iterdir()) == []


def test_a_registered_version_whose_files_lie_elsewhere_is_refused(tmp_path):
    folder = tmp_path / "version"
    for name in (folder, tmp_path / "secret"):
        name.mkdir()
    for path in ("../secret", str(tmp_path / "secret")):
        flavor = {"loader_module": "x", "config": {}, "artifacts": {"model": {"path": path}, "catalog": {"path": "c"}}}
        (folder / "MLmodel").write_text(json.dumps({"flavors": {"python_function": flavor}}))
        with pytest.raises(InputError, match="is outside"):
            read_version(folder, "models:/foreign/1")
