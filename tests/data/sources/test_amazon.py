import csv
import json

import pytest

from convrec.data.quarantine import Quarantine
from convrec.data.sources.amazon import read_amazon
from convrec.pipeline.published_table import print_published
from convrec.pipeline.stages.data import prepare
from convrec.project.config.params import parse_params
from convrec.project.config.profiles import compose
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.project.results import write_json
from tests.data.sources.amazon_sample import NAME, TITLES, write_sample
from tests.small_project import SHRUNK, make_project, run_in, set_params

INFO = f"info/{NAME}.txt"


def _read(folder, quarantine=None, **changes):
    options = {"catalog": INFO, "domain": ("product", "products"), "seed": 17}
    return read_amazon(folder, quarantine or Quarantine(), **options | changes)


def _cells(folder, split):
    with (folder / split / f"{NAME}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_row_names_its_history_and_its_next_item_is_the_ground_truth(tmp_path):
    folder = write_sample(tmp_path / "amazon")
    source = _read(folder)
    assert len(source.catalog) == len(TITLES), "each id is an item, also those of one title"
    lines = [str(item) for item in source.catalog.items]
    assert lines[24] == 'Industrial & Scientific" /> - 24' != lines[25] and lines[-1] == "Gauge 2012 (2012)"
    for split, name in (("train", "train"), ("validation", "valid"), ("test", "test")):
        rows, cells = list(source.rows[source.rows["split"] == split]), _cells(folder, name)
        assert len(rows) == len(cells) > 40
        for row, cell in zip(rows, cells, strict=True):
            ids = json.loads(cell["history_item_id"])
            assert row["seen_titles"] == [lines[n] for n in ids] and row["user_id"] == cell["user_id"]
            (truth,) = row["groundtruth"]
            assert source.catalog.find(truth["title"], truth["year"]) == int(cell["item_id"])
            words = " ".join(message["content"] for message in row["messages"])
            assert all(words.count(lines[n]) == 1 for n in ids)
    assert any(len(set(seen)) < len(seen) for seen in source.rows["seen_titles"]), "bought again"
    assert list(_read(folder).rows) == list(source.rows) != list(_read(folder, seed=18).rows)


def test_rows_that_cannot_be_used_are_set_aside(tmp_path, quarantine):
    folder = write_sample(tmp_path / "amazon")
    with (folder / "test" / f"{NAME}.csv").open("a", encoding="utf-8") as file:
        file.write("A1,['x'],y,\"[3, 999]\",4,['s'],s\nA1,['x'],y,nothing,4,['s'],s\nA1,['x'],y,[3],,['s'],s\n")
    source = _read(folder, quarantine)
    assert [(row["source"], row["reason"]) for row in quarantine.rows] == [
        ("interactions", "the item file has no id 999"),
        ("interactions", "history_item_id is no list of ids"),
        ("interactions", "the item file has no id "),
    ]
    assert (source.rows["split"] == "test").sum() == len(_cells(folder, "test")) - 3


def test_files_that_are_not_there_or_of_another_layout_are_named(tmp_path):
    folder = write_sample(tmp_path / "amazon")
    with pytest.raises(InputError, match=r"train/other.csv: no such file; data.path must hold train, valid, test"):
        _read(folder, catalog="info/other.txt")
    (folder / "valid" / f"{NAME}.csv").write_text("user,item\n1,2\n")
    with pytest.raises(InputError, match="valid/.*csv: not readable as CSV with user_id, history_item_id, item_id"):
        _read(folder)
    write_sample(folder)
    (folder / INFO).write_text("<a_1>\tDrill\n")
    with pytest.raises(InputError, match="row 1: 2 fields, not 3; take MiniOneRec's own file"):
        _read(folder)


def test_the_profile_keeps_every_row_and_all_items_are_candidates(tmp_path):
    folder = write_sample(tmp_path / "amazon")
    params = parse_params(compose("amazon", [f"data.path={folder}"]), "profile amazon")
    _, splits, _ = prepare(params, Quarantine())
    sizes = {name: len(_cells(folder, own)) for name, own in (("train", "train"), ("test", "test"))}
    assert {name: len(splits[name]) for name in sizes} == sizes
    test = list(splits["test"])
    assert all(not len(row["seen_titles"]) and len(row["repeatable_titles"]) for row in test)
    assert params.data.is_ordered and (params.common.cutoffs, params.common.list_length) == ([3, 5, 10], 10)


def _table(tmp_path, systems, *settings):
    """The Markdown of the published table for systems of equal figures, with the profile's parameters."""
    params, paths = parse_params(compose("amazon", list(settings)), "profile amazon"), Paths(tmp_path)
    names = [f"{metric}_at_{cutoff}" for cutoff in (3, 5, 10) for metric in ("hit_rate", "ndcg")]
    interval = {"low": 0.1, "high": 0.2, "n": 9}
    scores = {**dict.fromkeys(names, 0.15), "intervals": dict.fromkeys(names, interval)}
    write_json(paths.results("evaluate"), dict.fromkeys(systems, scores))
    print_published(params, paths)
    rows = (paths.comparison / "published.md").read_text().splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if row.startswith("| ")]
    return rows, {name: others for name, *others in cells}


def test_the_published_rows_stand_beside_ours(tmp_path, capsys):
    rows, cells = _table(tmp_path, ["item_knn", "sasrec", "rank_grpo"])
    names = [f"{name}@{cutoff}" for cutoff in (3, 5, 10) for name in ("HR", "N")]
    assert cells["system"] == [f"{name}, {kind}" for kind in ("ours", "published") for name in names]
    assert cells["SASRec"] == ["0.1500 ± 0.0500"] * 6 + ["0.0790", "0.0700", "0.0909", "0.0748", "0.1088", "0.0806"]
    assert cells["S-DPO"][-2:] == ["0.1524", "0.1082"] and cells["MiniOneRec"][-2:] == ["0.1586", "0.1167"]
    assert cells["item-kNN"][6:] == cells["Rank-GRPO"][6:] == [""] * 6
    assert len([name for name, own in cells.items() if own[-1].startswith("0.")]) == 10
    shown = capsys.readouterr().out
    assert "MiniOneRec's test split" in shown and "0.1167" in shown and "\u2026" not in shown
    assert rows[-1].startswith("The published systems have the same test rows")
    _, office = _table(tmp_path, ["sasrec"], "data.catalog=info/Office_Products_5_2016-10-2018-11.txt")
    assert office["SASRec"][-2:] == ["0.1120", "0.0858"] and office["S-DPO"][-2:] == ["0.1587", "0.1255"]
    with pytest.raises(InputError, match="data.catalog = 'info/Toys.txt' has no published figures; there are reddit"):
        _table(tmp_path, ["sasrec"], "data.catalog=info/Toys.txt")
    with pytest.raises(InputError, match="the published figures are at 3, 10; add it"):
        _table(tmp_path, ["sasrec"], "common.cutoffs=[5]")


@pytest.mark.slow
def test_the_pipeline_runs_on_a_sample(tmp_path):
    project = make_project(tmp_path / "project")
    write_sample(project / "data" / "raw" / "amazon")
    run_in(project, "convrec", "profile", "amazon")
    shrunk = {name: SHRUNK[name] for name in ("base_model", "demonstrations", "sft", "rank_grpo")}
    set_params(project, shrunk)
    set_params(project, {"common": {"max_completion_length": 120}})
    run_in(project, "dvc", "repro", "evaluate")
    shown = run_in(project, "convrec", "results", "--published").stdout
    assert "0.1586" in shown and "Amazon Industrial, MiniOneRec's test split" in shown
    figures = json.loads((project / "results" / "evaluate.json").read_text())
    assert figures["sasrec"]["hit_rate_at_10"] > figures["popularity"]["hit_rate_at_10"] > 0
    assert figures["rank_grpo"]["in_catalog"] == 1 and "sasrec" in figures["baselines"]
