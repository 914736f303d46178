import pickle
import shutil
import struct

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict

from convrec.data.conversations import build_prompt
from convrec.data.quarantine import Quarantine
from convrec.data.sources.reddit import read_reddit
from convrec.project.errors import InputError


def _row(question: str, truth: list) -> dict:
    prompt = [{"role": "user", "content": question}]
    return {"prompt": prompt, "groundtruth_with_release_year": truth, "seen_titles": ["Alien"]}


def _save(folder, **splits):
    rows = [_row("What like Alien?", [["Heat", "1995"]]), _row("What like Alien?", [["Up", "2009"], ["Odd", ""]])]
    made = {name: Dataset.from_list(rows) for name in ("train", "validation", "test")} | splits
    DatasetDict({name: split for name, split in made.items() if split is not None}).save_to_disk(str(folder))
    (folder / "catalog.pkl").write_bytes(pickle.dumps([("Heat", 1995), ("Up", 2009)]))
    return folder


def test_rows_that_share_a_prompt_stay_separate_and_share_its_id(tmp_path, quarantine):
    source = read_reddit(_save(tmp_path), quarantine, catalog="catalog.pkl")
    assert len(source.catalog) == 2
    train = pd.DataFrame(list(source.rows[source.rows["split"] == "train"]))
    assert len(train) == 2 and train["prompt_id"].nunique() == 1
    assert train["groundtruth"].tolist() == [
        [{"title": "Heat", "year": 1995}],
        [{"title": "Up", "year": 2009}, {"title": "Odd", "year": None}],
    ]
    assert train["seen_titles"].tolist() == [["Alien"], ["Alien"]]
    assert not quarantine.rows
    assert build_prompt(train["messages"][0], None, 20) == [{"role": "user", "content": "What like Alien?"}]


def test_null_cells_are_kept_aside(tmp_path, quarantine):
    rows = [_row("What like Alien?", [["Heat", "1995"]]) for _ in range(4)]
    rows[0]["prompt"] = rows[1]["groundtruth_with_release_year"] = None
    rows[2]["groundtruth_with_release_year"] = [None]
    source = read_reddit(_save(tmp_path, train=Dataset.from_list(rows)), quarantine, catalog="catalog.pkl")
    assert source.rows["split"].value_counts(sort=False).tolist() == [1, 2, 2]
    aside = [(row["row"], row["reason"]) for row in quarantine.rows if row["source"] == "conversations"]
    assert aside == [
        ("train:1", "messages are no list of {role, content}"),
        ("train:2", "no ground truth"),
        ("train:3", "no ground truth"),
    ]


def _drop_offsets(folder):
    path = folder / ARROW
    offsets = [struct.pack("<3i", *ends) for ends in ((0, 5, 10), (0, 5, 2**30))]  # of the seen titles
    assert path.read_bytes().count(offsets[0]) == 1
    path.write_bytes(path.read_bytes().replace(*offsets))


ARROW = "train/data-00000-of-00001.arrow"


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: shutil.rmtree(folder / "validation"),
        lambda folder: (folder / "dataset_dict.json").write_text('{"splits": []}'),
        lambda folder: (folder / "dataset_dict.json").unlink(),
        lambda folder: (folder / ARROW).write_bytes((folder / ARROW).read_bytes()[:100]),
        lambda folder: Dataset.from_list([{"prompt": "x"}]).save_to_disk(str(folder / "train")),
        _drop_offsets,
    ],
)
def test_a_damaged_dataset_is_told(tmp_path, change):
    change(_save(tmp_path))
    with pytest.raises(
        InputError, match=f"{tmp_path}.*no readable DatasetDict of train, validation, test with the col"
    ):
        read_reddit(tmp_path, Quarantine(), catalog="catalog.pkl")
