"""`benchmarks.pretrained` with a tiny random model and a small log of ratings."""

import csv
import json
import re
from argparse import Namespace

import numpy as np
import pytest

from benchmarks import pretrained
from tests.local_hub import write_model
from tests.small_project import ROOT


def _write_log(folder, users=60, items=80):
    rng, titles = (
        np.random.default_rng(5),
        [f"The {word} of {n}" for n in range(16) for word in ["sun", "moon", "sea", "hill", "fox"]],
    )
    folder.mkdir()
    with (folder / "items.csv").open("w", newline="") as file:
        rows = [(n, f"{titles[n]} ({1950 + n % 50})", "01-Jan-1995", ("Comedy", "Drama")[n % 2]) for n in range(items)]
        csv.writer(file).writerows([("movie_id", "title", "release_date", "genres"), *rows])
    with (folder / "ratings.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("user_id", "movie_id", "rating", "timestamp"))
        for user in range(users):
            for place, item in enumerate(rng.permutation(items)[:30]):
                writer.writerow((user, item, 5 if item % 2 == user % 2 else 3, 874_724_710 + 1000 * place))
    return titles


@pytest.mark.parametrize("case", pretrained.CASES)
def test_the_parameters_of_a_case_are_allowed(case, tmp_path):
    options = Namespace(redial=tmp_path, movielens=tmp_path, model=tmp_path, smoke=False, set=["common.seed=18"])
    params = pretrained.case_params(case, options)
    assert params.common.seed == 18
    if not case.endswith("-embedded"):
        is_items = case.endswith("-items")
        assert params.common.item_tokens == is_items and (params.sft.demonstration_weight == 0) == is_items


@pytest.mark.nightly
def test_every_part_has_its_result_and_none_is_repeated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    titles = _write_log(tmp_path / "log")
    write_model(tmp_path / "model", ["\n".join(titles), "Recommend movies. User: Assistant:"] * 3)
    out, cases = tmp_path / "out", ["movielens-items", "movielens-text", "movielens-embedded"]
    command = ["--out", str(out), "--model", str(tmp_path / "model"), "--movielens", str(tmp_path / "log"), "--smoke"]
    command += ["--set", "base_model.dtype=float32", "--cases"]
    pretrained.main([*command, "movielens"])
    alone = (out / "movielens" / "result.json").read_bytes()
    assert list(json.loads(alone)["seconds"]) == ["data", "evidence", "demonstrations", "lists"]
    assert [path.name for path in out.glob("*.log")] == ["movielens.log"]
    capsys.readouterr()
    pretrained.main([*command, *cases])
    assert (out / "movielens" / "result.json").read_bytes() == alone
    for case in cases:
        found = json.loads((out / case / "result.json").read_text())
        parts = ["base_model", "sft", "guidance", "sft_lists", "rank_grpo", "rank_grpo_lists", "base_lists"]
        assert list(found["seconds"]) == parts
        assert found["rank_grpo_training"]["steps"] == 2 and found["sft_unguided_test"]["rows"] > 0
        assert found["sft_unguided_test"]["in_catalog"] == 1
    tokens = [json.loads((out / case / "result.json").read_text())["rank_grpo_training"] for case in cases]
    assert tokens[0]["tokens_per_list"] == 21 < tokens[1]["tokens_per_list"]
    text = capsys.readouterr().out
    assert text == (out / "tables.md").read_text()
    for system, times in {"item-kNN": 1, "items: sft unguided": 1}.items():
        assert len(re.findall(rf"^\| {system} \| 0", text, re.MULTILINE)) == times
    assert "| items: sft guided | text: sft guided | " in text and "| seconds.sft | " in text
    before = {case: (out / case / "result.json").read_bytes() for case in cases}
    pretrained.main([*command, *cases])
    assert {case: (out / case / "result.json").read_bytes() for case in cases} == before
