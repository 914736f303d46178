import json

import pytest

from convrec.data.catalog import Catalog
from convrec.data.revisions.diff import diff
from convrec.project.errors import InputError
from tests.data.revisions.tables import film, table, talk


def _write(folder, items, rows):
    folder.mkdir()
    Catalog(items).to_frame().to_parquet(folder / "catalog.parquet")
    table(*rows).to_parquet(folder / "train.parquet")


def test_two_folders_are_compared_as_a_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    heat, se7en, zodiac = film("Heat", 1995, plot="x"), film("Se7en", 1995), film("Zodiac", 2007)
    _write(tmp_path / "old", [heat, se7en, zodiac], [talk("a")])
    new = [film("Heat", 1995, ["Hitze"], plot="y"), film("Se7en", 1996), film("Up")]
    _write(tmp_path / "new", new, [talk("a"), talk("b", truths=[("Up", 2009)], date="")])
    found = diff("old", "new")
    assert json.loads(json.dumps(found.to_json())) == {
        "old": "old",
        "new": "new",
        "catalog": {
            "before": 3,
            "after": 3,
            "unchanged": 0,
            "added": ["Up"],
            "removed": ["Zodiac (2007)"],
            "renamed": ["Se7en (1995) -> Se7en (1996)"],
            "merged": [],
            "changed": ['Heat (1995): plot "x" -> "y"; alias "Hitze" added'],
        },
        "conversations": {
            "new": 1,
            "gone": 0,
            "moved": [],
            "splits": {
                "train": {
                    "rows": {"before": 1, "after": 2},
                    "prompts": {"before": 1, "after": 2},
                    "added": 1,
                    "removed": 0,
                    "months": {"2024-01": {"before": 1, "after": 1}, "undated": {"before": 0, "after": 1}},
                }
            },
        },
        "not_compared": [],
    }
    text = found.to_text().split("\n")
    assert "Catalog: 3 -> 3 items: 1 added, 1 removed, 1 renamed, 0 merged, 1 changed, 0 unchanged" in text
    same = diff("old", "old")
    assert same.is_empty and same.to_text() == "old -> old: no change"


def test_a_part_that_only_one_version_has_is_named(tmp_path):
    _write(tmp_path / "both", [film("Heat", 1995)], [talk("a")])
    Catalog([film("Heat", 1995)]).to_frame().to_parquet(tmp_path / "other.parquet")
    found = diff(str(tmp_path / "both"), str(tmp_path / "other.parquet"))
    assert found.not_compared == ["conversations"] and found.conversations is None and found.is_empty
    assert "only one version has it: conversations" in found.to_text()
    with pytest.raises(InputError, match="one has only a catalog, the other only conv"):
        diff(str(tmp_path / "both" / "train.parquet"), str(tmp_path / "other.parquet"))
