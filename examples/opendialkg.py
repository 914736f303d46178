"""OpenDialKG (Moon et al., ACL 2019) for the source `files`: python examples/opendialkg.py FROM TO

FROM has opendialkg.csv and opendialkg_triples.txt. A film is what has a director or actors in the triples. Each
message of the assistant that names films anew is a row, with these films as ground truth.
"""

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path

COLUMNS = {"has_genre": "genre", "directed_by": "director", "starred_actors": "star", "release_year": "year"}


def read_films(triples: Path) -> dict[str, dict[str, list[str]]]:
    """Return the values of each film by column."""
    values: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in triples.read_text(encoding="utf-8").splitlines():
        subject, relation, found = (line.split("\t") + ["", ""])[:3]
        if relation in COLUMNS and found not in values[subject][COLUMNS[relation]]:
            values[subject][COLUMNS[relation]].append(found)
    return {name: own for name, own in values.items() if own.keys() & {"director", "star"}}


def rows_of(number: int, turns: list[dict], films: dict[str, dict[str, list[str]]]) -> list[dict]:
    """Return a row for each message of the assistant that names films anew; films are named on the paths of turns."""
    on_paths = {name for turn in turns for step in turn.get("metadata", {}).get("path", [0, []])[1] for name in step}
    rows, messages, seen = [], [], list[str]()
    for turn in turns:
        if turn["type"] != "chat" or not turn["message"].strip():
            continue
        said, role = turn["message"].strip(), "user" if turn["sender"] == "user" else "assistant"
        named = sorted({name for name in on_paths & films.keys() if name in said and name not in seen}, key=said.find)
        if role == "assistant" and named and messages:
            truths = [{"title": name, "year": year_of(films[name])} for name in named]
            row = {"conversation_id": str(number), "messages": list(messages), "groundtruth": truths}
            rows.append({**row, "seen_titles": list(seen)})
        messages.append({"role": role, "content": said})
        seen += named
    return rows


def year_of(values: dict[str, list[str]]) -> int | None:
    return next((int(year) for year in values.get("year", []) if year.isdigit()), None)


def main(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    films = read_films(source / "opendialkg_triples.txt")
    with (target / "catalog.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["title", "year", "genre", "director", "star"])
        for name, values in sorted(films.items()):
            texts = [", ".join(values.get(column, [])) for column in ("genre", "director", "star")]
            writer.writerow([name, year_of(values), *texts])
    csv.field_size_limit(2**27)
    with (
        (source / "opendialkg.csv").open(encoding="utf-8", newline="") as file,
        (target / "conversations.jsonl").open("w", encoding="utf-8") as out,
    ):
        for number, record in enumerate(csv.DictReader(file)):
            for row in rows_of(number, json.loads(record["Messages"]), films):
                out.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
