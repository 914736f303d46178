"""How the stage splits rows: the documented commands on the sample, with its dates and without."""

import json
import logging

import pytest

from convrec.config.params import load_params
from convrec.config.profiles import apply_profile
from convrec.data.quarantine import Quarantine
from convrec.data.sources.sample import write_sample
from convrec.errors import InputError
from convrec.stages.data import prepare
from tests.project import ROOT


@pytest.fixture
def prepare_sample(tmp_path, monkeypatch):
    """Return what prepares the sample's splits, each row changed before, under the profile `files` as it is shipped."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles").symlink_to(ROOT / "profiles")
    written = write_sample(tmp_path / "mine", "2022-12", num_conversations=240, seed=17)

    def prepared(change):
        for path in written[1:]:
            rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            path.write_text("".join(json.dumps(change(row)) + "\n" for row in rows), encoding="utf-8")
        apply_profile("files", ["data.path=mine"])
        return prepare(load_params(), Quarantine())[1]

    return prepared


def _months(rows):
    return {date[:7] for date in rows["date"]}


def test_dated_files_are_split_by_month(prepare_sample):
    splits = prepare_sample(lambda row: row)
    assert _months(splits["validation"]) == {"2022-11"} and _months(splits["test"]) == {"2022-12"}
    assert max(_months(splits["train"])) < "2022-11"


def test_files_without_any_date_are_split_by_conversation(prepare_sample, caplog):
    with caplog.at_level(logging.WARNING):
        splits = prepare_sample(lambda row: row | {"date": None})
    assert "no row has a date: rows are split by conversation" in caplog.text
    conversations = {name: set(rows["conversation_id"]) for name, rows in splits.items()}
    sizes = {name: len(found) for name, found in conversations.items()}
    assert sizes["validation"] == sizes["test"] == 24 and 150 < sizes["train"] <= 192, "10 % each, leaks left out"
    assert not conversations["train"] & (conversations["validation"] | conversations["test"])


def test_some_rows_without_a_date_are_left_out(prepare_sample):
    splits = prepare_sample(lambda row: row if row["date"][8:] < "28" else row | {"date": None})
    assert _months(splits["test"]) == {"2022-12"}
    assert all(date[8:] < "28" for rows in splits.values() for date in rows["date"])


def test_a_source_whose_rows_are_all_dropped_is_named(prepare_sample):
    def name_truth(row):
        return row | {"seen_titles": [item["title"] for item in row["groundtruth"]]}

    with pytest.raises(InputError, match="no row is left.* check data.checks"):
        prepare_sample(name_truth)
