"""The items of a log in every layout that is read."""

import json

import pytest

from convrec.data.quarantine import Quarantine
from convrec.data.sources.item_files import read_items
from convrec.project.errors import InputError

FILMS = [("1", "Toy Story (1995)", "Animation|Children's"), ("2", "Postman, The (Postino, Il) (1994)", "Drama")]
FILMS += [("3", "unknown", "unknown"), ("4", "Toy Story (1995)", "Comedy")]
FLAGS = {"Animation": 3, "Children's": 4, "Drama": 8, "unknown": 0, "Comedy": 5}


def _u_item():
    lines = []
    for number, title, genres in FILMS:
        flags = ["0"] * 19
        for genre in genres.split("|"):
            flags[FLAGS[genre]] = "1"
        lines.append("|".join([number, title, "01-Jan-1995", "", "http://x?caf\xe9", *flags]))
    return "\n".join(lines).encode("latin-1") + b"\n"


def _csv(header):
    return "\n".join([header, *(f'{number},"{title}",{genres}' for number, title, genres in FILMS)]).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("u.item", _u_item()),
        ("movies.dat", "\n".join("::".join(film) for film in FILMS).encode("latin-1")),
        ("movies.csv", _csv("movieId,title,genres")),
        ("items.csv", _csv("movie_id,title,genres")),
    ],
)
def test_films_of_movielens_have_titles_as_people_write_them(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    catalog, indices = read_items(tmp_path / name, Quarantine())
    assert [str(item) for item in catalog.items] == ["Toy Story (1995)", "The Postman (1994)", "unknown"]
    assert indices == {"1": 0, "2": 1, "3": 2, "4": 0}, "one title and year is one item"
    genres = ["Animation, Children's", "Drama", ""]
    assert [item.metadata for item in catalog.items] == [{"genres": own} for own in genres]
    assert catalog.find("Il Postino", 1994) == 1


def test_films_in_utf_8_and_in_latin_1(tmp_path):
    lines = [b"\xef\xbb\xbf73::Mis\xc3\xa9rables (1995)::Drama", b"", b"74::\xc3\x85dalen 31 (1969)::Drama\r"]
    lines += [b"75::Caf\xe9 au Lait (1993)::Comedy"]
    lines += [b"\xef\xbb\xbf76::Fast &amp; Furious\xe2\x80\x8e (2009)::Action", b""]
    (tmp_path / "movies.dat").write_bytes(b"\n".join(lines))
    catalog, indices = read_items(tmp_path / "movies.dat", Quarantine())
    titles = ["Misérables (1995)", "Ådalen 31 (1969)", "Café au Lait (1993)", "Fast & Furious (2009)"]
    assert [str(item) for item in catalog.items] == titles
    assert indices == {"73": 0, "74": 1, "75": 2, "76": 3}
    assert [item.metadata["genres"] for item in catalog.items] == ["Drama", "Drama", "Comedy", "Action"]


@pytest.mark.parametrize(
    ("written", "line", "alias"),
    [
        ("Associate, The (L'Associe)(1982)", "The Associate (1982)", "L'Associe"),
        ("Avventura, L' (a.k.a. Adventure, The) (1960)", "L'Avventura (1960)", "The Adventure"),
        ("Olvidados, Los (1950)", "Los Olvidados (1950)", None),
        ("Fawlty Towers (1975-1979)", "Fawlty Towers (1975)", None),
        ("Cosmos (Kosmos) (1980)(TV)", "Cosmos (1980)", "Kosmos"),
    ],
)
def test_a_film_of_movielens_has_its_natural_title(tmp_path, written, line, alias):
    (tmp_path / "movies.dat").write_text(f"1::{written}::Drama\n")
    (item,) = read_items(tmp_path / "movies.dat", Quarantine())[0].items
    assert str(item) == line and item.aliases == ((alias,) if alias else ())


def _meta(folder, rows):
    """Write the metadata of a category of Amazon's products."""
    (folder / "meta_Home.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "meta_Home.jsonl"


def test_products_of_amazon(tmp_path):
    lamp = {"parent_asin": "P0", "title": "Lamp", "store": "Lux", "categories": ["Home", "Light"]}
    rows = [
        lamp | {"images": [{}], "price": 3},
        {"parent_asin": "P1", "title": "", "categories": []},
        {"parent_asin": "P2", "title": "Chair", "store": None, "main_category": "Home"},
    ]
    path, quarantine = _meta(tmp_path, rows), Quarantine()
    catalog, indices = read_items(path, quarantine)
    assert indices == {"P0": 0, "P2": 1} and [row["reason"] for row in quarantine.rows] == ["no title"]
    assert catalog.items[0].metadata == {"store": "Lux", "categories": "Home, Light", "main_category": ""}
    path.write_bytes(path.read_bytes().replace(b"\n", b"\n \r\n\n") + b"\xef\xbb\xbf")
    assert read_items(path, Quarantine())[1] == indices, "blank lines are none"
    path.write_text("{}\n[]\n")
    with pytest.raises(InputError, match="meta_Home.jsonl: line 2: no JSON object"):
        read_items(path, Quarantine())


def test_products_that_share_a_broken_title_stay_apart(tmp_path, caplog, quarantine):
    ids = {"P0": "Lamp", "P1": "1", "P2": "1", "P3": "Desk (2015)", "P4": "Desk (2015)", "P5": " lamp"}
    rows = [{"parent_asin": own, "title": title} for own, title in [*ids.items(), ("P1", "1")]]
    catalog, indices = read_items(_meta(tmp_path, rows), quarantine)
    lines = ["Lamp - P0", "1 - P1", "1 - P2", "Desk - P3 (2015)", "Desk - P4 (2015)", "lamp - P5"]
    assert [str(item) for item in catalog.items] == lines and list(indices.values()) == [*range(6)]
    assert catalog.indices_of_title("Lamp") == [0, 5] and catalog.find("1", None) is None
    assert [row["reason"] for row in quarantine.rows] == ["duplicate item"], "the same id twice"
    assert "7 items share title and year with another" in caplog.text
    catalog.check_lines()


def test_any_catalog_file_with_ids(tmp_path):
    path = tmp_path / "songs.csv"
    path.write_text("id,title,artist\n7,Hello,Adele\n8,Hello,Lionel Richie\n")
    catalog, indices = read_items(path, Quarantine(), line_column="artist")
    assert [str(item) for item in catalog.items] == ["Hello - Adele", "Hello - Lionel Richie"]
    assert indices == {"7": 0, "8": 1}

    path.write_text("title,artist\nHello,Adele\n")
    with pytest.raises(InputError, match=r"songs.csv: no column of ids \(found artist, title\)"):
        read_items(path, Quarantine())
    (tmp_path / "movies.dat").write_text("1::Heat (1995)\n")
    with pytest.raises(InputError, match="movies.dat: row 1: 2 fields, not 3"):
        read_items(tmp_path / "movies.dat", Quarantine())
