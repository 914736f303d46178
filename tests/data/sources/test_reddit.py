import pickle

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


def test_rows_that_share_a_prompt_stay_separate_and_share_its_id(tmp_path):
    quarantine = Quarantine()
    source = read_reddit(_save(tmp_path), quarantine, catalog="catalog.pkl")
    assert len(source.catalog) == 2
    train = source.rows[source.splits == "train"]
    assert len(train) == 2 and train["prompt_id"].nunique() == 1
    assert train["groundtruth"].tolist() == [
        [{"title": "Heat", "year": 1995}],
        [{"title": "Up", "year": 2009}, {"title": "Odd", "year": None}],
    ]
    assert train["seen_titles"].tolist() == [["Alien"], ["Alien"]]
    assert not quarantine.rows
    assert build_prompt(train["messages"][0], None, 20) == [{"role": "user", "content": "What like Alien?"}]


def test_a_missing_split_or_column_or_folder_is_named(tmp_path):
    with pytest.raises(InputError, match="split 'test' is missing"):
        read_reddit(_save(tmp_path / "a", test=None), Quarantine(), catalog="catalog.pkl")
    bare = Dataset.from_list([{"prompt": [{"role": "user", "content": "x"}]}])
    with pytest.raises(InputError, match="column 'groundtruth_with_release_year' is missing"):
        read_reddit(_save(tmp_path / "b", test=bare), Quarantine(), catalog="catalog.pkl")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "catalog.pkl").write_bytes(pickle.dumps([("Heat", 1995)]))
    with pytest.raises(InputError, match="no readable saved DatasetDict"):
        read_reddit(tmp_path / "c", Quarantine(), catalog="catalog.pkl")
