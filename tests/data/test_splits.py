"""How the stage splits rows: the documented commands on the sample, with its dates and without."""

import datetime
import json
import logging

import numpy as np
import pandas as pd
import pytest

from convrec.data.conversations import is_before, split_by_period, split_by_person
from convrec.data.quarantine import Quarantine
from convrec.data.sources.sample import write_sample
from convrec.pipeline.stages.data import prepare
from convrec.project.config.params import load_params
from convrec.project.config.period import Period
from convrec.project.config.profiles import apply_profile
from convrec.project.errors import InputError
from tests.small_project import ROOT


@pytest.fixture
def prepare_sample(here):
    """Return what prepares the sample's splits, each row changed before, under the profile `files` as it is shipped."""
    (here / "profiles").symlink_to(ROOT / "profiles")
    written = write_sample(here / "mine", "2022-12", num_conversations=240, seed=17)

    def prepared(change, *settings):
        for path in written[1:]:
            rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            path.write_text("".join(json.dumps(change(row)) + "\n" for row in rows), encoding="utf-8")
        apply_profile("files", ["data.path=mine", *settings])
        return prepare(load_params(), Quarantine())[1]

    return prepared


def _dated(dates):
    return pd.DataFrame({"date": dates, "row": range(len(dates))})


@pytest.mark.parametrize("months", [("2022-02", "2022-03"), ("2021-11", "2022-02"), ("2021-12", "2022-01")])
def test_months_are_split_as_by_their_text(months):
    rng = np.random.default_rng(3)
    start = datetime.date(2021, 9, 1)
    dates = [str(start + datetime.timedelta(days=int(number))) for number in rng.integers(0, 300, 2000)]
    rows = _dated(dates)
    splits = split_by_period(rows, *map(Period.parse, months))
    texts = rows["date"].str.slice(0, 7)
    chosen = {"train": texts < months[0], "validation": texts == months[0], "test": texts == months[1]}
    assert list(splits) == list(chosen)
    for name, mask in chosen.items():
        pd.testing.assert_frame_equal(splits[name], rows[mask])


def test_both_ends_of_a_span_are_in_it_and_other_days_are_in_no_split():
    days = ["2022-04-07", "2022-04-08", "2022-04-14", "2022-04-15", "2022-04-20", "2022-04-21", "2022-04-22"]
    splits = split_by_period(_dated(days), Period.parse("2022-04-08/2022-04-14"), Period.parse("2022-04-20/2022-04-21"))
    found = {name: rows["date"].to_list() for name, rows in splits.items()}
    assert found == {"train": days[:1], "validation": days[1:3], "test": days[4:6]}


def test_an_empty_split_names_the_days_of_the_rows_and_the_parameters():
    rows = _dated(["2022-03-05", "2022-04-07", "2022-04-09"])
    message = (
        r"the test split is empty; the rows reach from 2022-03-05 to 2022-04-09, the last months with rows are "
        r"2022-03 \(1\), 2022-04 \(2\): choose data.validation_period and data.test_period within"
    )
    with pytest.raises(InputError, match=message):
        split_by_period(rows, Period.parse("2022-04-08/2022-04-14"), Period.parse("2022-04-15/2022-04-21"))


@pytest.mark.parametrize(
    ("first", "others", "expected"),
    [
        (["2022-04-07", "2022-03-01"], ["2022-04-09", "2022-04-08"], True),
        (["2022-04-07", "2022-04-08"], ["2022-04-09", "2022-04-08"], False),
        (["2022-04-07", ""], ["2022-04-08"], False),
        ([], ["2022-04-08"], False),
        (["2022-04-07"], [], False),
    ],
)
def test_rows_are_before_others_by_day(first, others, expected):
    assert is_before([{"date": day} for day in first], [{"date": day} for day in others]) == expected


def test_files_without_any_date_are_split_by_person(prepare_sample, caplog):
    with caplog.at_level(logging.WARNING):
        splits = prepare_sample(lambda row: row | {"date": None})
    assert "no row has a date: rows are split by person" in caplog.text
    conversations = {name: set(rows["conversation_id"]) for name, rows in splits.items()}
    sizes = {name: len(found) for name, found in conversations.items()}
    assert 12 <= sizes["validation"] <= 36 and 12 <= sizes["test"] <= 36, "about 10 % each"
    assert 150 < sizes["train"] <= 240 - sizes["validation"] - sizes["test"], "the rest, leaks left out"
    assert not conversations["train"] & (conversations["validation"] | conversations["test"])


def test_people_keep_their_splits_when_others_are_added():
    people = [f"c{i // 3}" for i in range(3_000)]
    rows = pd.DataFrame({"conversation_id": people, "user_id": [""] * 1_500 + [f"u{i // 6}" for i in range(1_500)]})

    def split_of(rows, seed=17):
        splits = split_by_person(rows, 0.1, seed)
        return {name: set(split["conversation_id"]) for name, split in splits.items()}

    fewer, more = split_of(rows[600:1_800]), split_of(rows.sample(frac=1, random_state=0))
    assert all(fewer[name] <= more[name] for name in more) and sum(map(len, more.values())) == 1_000
    assert 70 < len(more["validation"]) < 130 and 70 < len(more["test"]) < 130
    assert split_of(rows, seed=18) != more


def test_some_rows_without_a_date_are_left_out(prepare_sample):
    splits = prepare_sample(lambda row: row if row["date"][8:] < "28" else row | {"date": None})
    assert {date[:7] for date in splits["test"]["date"]} == {"2022-12"}
    assert all(date[8:] < "28" for rows in splits.values() for date in rows["date"])


def test_a_source_whose_rows_are_all_dropped_is_named(prepare_sample):
    def name_truth(row):
        return row | {"seen_titles": [item["title"] for item in row["groundtruth"]]}

    with pytest.raises(InputError, match="no row is left.* check data.checks"):
        prepare_sample(name_truth)
