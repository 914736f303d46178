import csv
import json
import subprocess
import sys

from convrec.data.quarantine import Quarantine
from convrec.data.sources.files import read_files
from tests.small_project import ROOT

TRIPLES = """Heat\tdirected_by\tMichael Mann
Heat\trelease_year\t1995
Heat\thas_genre\tCrime Fiction
Collateral\tdirected_by\tMichael Mann
Collateral\tstarred_actors\tTom Cruise
Michael Mann\t~directed_by\tHeat
Dune\twritten_by\tFrank Herbert
"""
PATH = {"path": [1.0, [["Heat", "directed_by", "Michael Mann"], ["Michael Mann", "~directed_by", "Collateral"]], ""]}
TURNS = [
    {"type": "chat", "sender": "user", "message": "I liked Heat."},
    {"type": "action", "sender": "assistant", "action_id": "kgwalk/choose_path", "metadata": PATH},
    {"type": "chat", "sender": "assistant", "message": "Michael Mann also made Collateral."},
    {"type": "chat", "sender": "user", "message": "And a book? Dune?"},
    {"type": "chat", "sender": "assistant", "message": "Heat and Collateral are films."},
]


def test_a_message_that_names_films_anew_is_a_row_of_the_source_files(tmp_path):
    (tmp_path / "opendialkg_triples.txt").write_text(TRIPLES)
    with (tmp_path / "opendialkg.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["Messages", "User Rating", "Assistant Rating"], [json.dumps(TURNS), "5", "5"]])
    subprocess.run([sys.executable, ROOT / "examples/opendialkg.py", tmp_path, tmp_path / "made"], check=True)
    quarantine = Quarantine()
    found = read_files(tmp_path / "made", quarantine, catalog="catalog.csv")
    assert [(item.title, item.year) for item in found.catalog.items] == [("Collateral", None), ("Heat", 1995)]
    (row,) = found.rows
    assert [truth["title"] for truth in row["groundtruth"]] == ["Collateral"]
    assert [message["role"] for message in row["messages"]] == ["user"] and list(row["seen_titles"]) == ["Heat"]
