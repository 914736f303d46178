import pytest

from convrec.errors import InputError
from convrec.versions.diff import diff
from tests.versions.tables import catalog_of, film, ids, table, talk


def test_two_folders_are_compared_as_a_whole(tmp_path):
    for name, items, rows in [
        ("old", [film("Heat", 1995)], [talk("a")]),
        (
            "new",
            [film("Heat", 1995), film("Up", 2009)],
            [talk("a"), talk("b", truths=[("Up", 2009)])],
        ),
    ]:
        (tmp_path / name).mkdir()
        catalog_of(*items).to_parquet(tmp_path / name / "catalog.parquet")
        table(*rows).to_parquet(tmp_path / name / "train.parquet")
    found = diff(str(tmp_path / "old"), str(tmp_path / "new"))
    assert ids(found.catalog.added) == ["up_2009"]
    assert (found.conversations.new, found.conversations.mentions_of_added) == (1, 1)
    text = found.to_text().split("\n")
    assert "Catalog: 1 -> 2 items: 1 added, 0 removed, 0 renamed, 0 changed, 1 unchanged" in text
    assert "  the ground truth of new rows names added items 1 time" in text
    assert list(found.to_json()) == ["old", "new", "catalog", "conversations", "not_compared"]
    same = diff(str(tmp_path / "old"), str(tmp_path / "old"))
    assert same.is_empty and len(same.to_text().split("\n")) == 1 and "no change" in same.to_text()


def test_what_only_one_version_has_is_said(tmp_path):
    catalog_of(film("Heat", 1995)).to_parquet(tmp_path / "catalog.parquet")
    catalog_of(film("Heat", 1995)).to_parquet(tmp_path / "other.parquet")
    table(talk("a")).to_parquet(tmp_path / "train.parquet")
    found = diff(str(tmp_path), str(tmp_path / "other.parquet"))
    assert found.not_compared == ("conversations",) and found.conversations is None and found.is_empty
    assert "only one version has it: conversations" in found.to_text()
    with pytest.raises(InputError, match="train.parquet has only conversations.*nothing to compare"):
        diff(str(tmp_path / "train.parquet"), str(tmp_path / "other.parquet"))
