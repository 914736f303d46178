"""The catalog: which items exist, and whether a written title names one of them."""

import csv
import io
import json
import pickle
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path

import pandas as pd

from convrec.errors import InputError

YEARS = range(1870, 2101)  # the years that an item can have
YEAR_TOLERANCE = 2  # years that differ by at most this many still name the same film (method, "Relevance")


def fold(title: str) -> str:
    """Return the title with whitespace folded and case removed: the form in which titles are compared."""
    return " ".join(title.split()).casefold()


_ARTICLE_LAST = re.compile(r"^(.*), (the|an?)$")
_ARTICLE_FIRST = re.compile(r"^(?:the|an?) (?=\S)")
_ROMAN = {"ii": "2", "iii": "3", "iv": "4", "vi": "6", "vii": "7", "viii": "8", "ix": "9"}  # not those that are words
_NUMBERS = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
]
_ALIKE = {
    **_ROMAN,
    **{word: str(number) for number, word in enumerate(_NUMBERS, start=1)},
    **{"vol": "volume", "pt": "part", "vs": "versus", "v": "versus"},
}
_SUPERSCRIPT = re.compile(r"(?=[¹²³⁴-⁹])")
_HYPHEN = re.compile(r"(?<=\w)[-‐‑·](?=\w)")
_WORD = re.compile(r"[^\W_]+")


@lru_cache(maxsize=100_000)  # the same few titles come again and again
def normalise(title: str) -> str:
    """Return the title's words, in the form in which spellings of one title agree; the folded title if it has none.

    Without case, accents and punctuation, an article that comes last ("Matrix, The") in its place; `&` is "and", Roman
    numerals and number words are digits, a few abbreviations are written out.
    """
    text = unicodedata.normalize("NFKD", _SUPERSCRIPT.sub(" ", fold(title)).replace("&", " and "))
    text = " ".join("".join(c for c in text if not unicodedata.combining(c) and c not in "'’‘`´").split()).casefold()
    words = _WORD.findall(_ARTICLE_LAST.sub(r"\2 \1", text))
    if len(words) > 1:  # a title of one word, as Nine, keeps it: 9 is another film
        last = "5" if words[-1] == "v" else _ALIKE.get(words[-1], words[-1])  # Rocky V
        words = [*(_ALIKE.get(word, word) for word in words[:-1]), last]
    return " ".join(words) or fold(title)


def without_article(normalised: str) -> str:
    """Return a normalised title without its leading article."""
    return _ARTICLE_FIRST.sub("", normalised)


def _spellings(title: str) -> set[str]:
    """Return the forms under which a title is looked up where its year is near or unknown.

    Hyphens divide words, or do not; in a title of three words or more a leading article does not matter either.
    """
    forms = {normalise(title), normalise(_HYPHEN.sub("", title))}
    return forms | {bare for form in forms if len((bare := without_article(form)).split()) > 2}


def _loose(title: str) -> str:
    """Return the form under which a title is looked up where the year is the very same: no article, no spaces."""
    return without_article(normalise(title)).replace(" ", "")


@dataclass(frozen=True)
class Item:
    """One recommendable item; `metadata` maps a field (genres, keywords, plot) to its text."""

    title: str
    year: int
    metadata: dict[str, str] = field(default_factory=dict, compare=False, hash=False)

    def __str__(self) -> str:
        return f"{self.title} ({self.year})"

    def text(self) -> str:
        """Return title, year and metadata as one text, the input of the embedders."""
        return ". ".join([str(self), *(value for value in self.metadata.values() if value)])


class Catalog:
    """An ordered set of items, with look-up by written title and year.

    Raises `InputError` on an empty catalog or on two items of the same folded title and year.
    """

    def __init__(self, items: Iterable[Item]):
        self.items: tuple[Item, ...] = tuple(items)
        if not self.items:
            raise InputError("catalog: it holds no item; give a file with at least one title and year")
        self._years: dict[str, list[tuple[int, int]]] = {}  # folded title -> (year, index)
        self._lines = {str(item): index for index, item in enumerate(self.items)}
        self._spellings: dict[str, list[int]] = {}
        self._loose: dict[str, list[int]] = {}
        for index, item in enumerate(self.items):
            entries = self._years.setdefault(fold(item.title), [])
            if any(year == item.year for year, _ in entries):
                raise InputError(f"catalog: {item} stands twice; remove one of the two rows")
            entries.append((item.year, index))
            for spelling in _spellings(item.title):
                self._spellings.setdefault(spelling, []).append(index)
            self._loose.setdefault(_loose(item.title), []).append(index)

    def __len__(self) -> int:
        return len(self.items)

    def index_of_line(self, line: str) -> int | None:
        """Return the index of the item whose text is exactly `line`, else None: the parser's fast path."""
        return self._lines.get(line)

    def find(self, title: str, year: int | None, tolerance: int = YEAR_TOLERANCE) -> int | None:
        """Return the index of the item of this title whose year is nearest, within `tolerance` years.

        Without a year, the title must be unambiguous. Returns None where no item matches.
        """
        entries = self._years.get(fold(title), [])
        if year is None:
            return entries[0][1] if len(entries) == 1 else None
        near = [(abs(known - year), index) for known, index in entries if abs(known - year) <= tolerance]
        return min(near)[1] if near else None

    def indices_of_title(self, title: str) -> list[int]:
        """Return the indices of all items of this title, whatever their year."""
        return [index for _, index in self._years.get(fold(title), [])]

    def readings(self, title: str, year: int | None, tolerance: int = YEAR_TOLERANCE) -> list[int]:
        """Return the indices of the items that a title, in any spelling, can mean.

        With a year, the one whose year is nearest within `tolerance`, or none; in that very year, article and spaces do
        not matter. Without, all items of that title: "The Predator" is then no "Predator", which is another film.
        """
        spelt = sorted({index for spelling in _spellings(title) for index in self._spellings.get(spelling, ())})
        if year is None:
            return spelt
        near = [(abs(self.items[index].year - year), index) for index in spelt]
        near += [(0, index) for index in self._loose.get(_loose(title), ()) if self.items[index].year == year]
        return [min(near)[1]] if near and min(near)[0] <= tolerance else []

    def first_unseen(self, order: Iterable[int], seen_titles: Iterable[str], size: int) -> list[Item]:
        """Return the first `size` items in this order of indices whose title was not seen."""
        seen = {fold(title) for title in seen_titles}
        unseen = (self.items[index] for index in order if fold(self.items[index].title) not in seen)
        return list(islice(unseen, size))

    def to_frame(self) -> pd.DataFrame:
        """Return the canonical table: title, year, metadata (a JSON object)."""
        return pd.DataFrame(
            {
                "title": [item.title for item in self.items],
                "year": [item.year for item in self.items],
                "metadata": [json.dumps(item.metadata, ensure_ascii=False) for item in self.items],
            }
        )

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> "Catalog":
        """Return the catalog of a canonical table (see `to_frame`)."""
        rows = zip(frame["title"], frame["year"], frame["metadata"], strict=True)
        return cls(Item(title, int(year), json.loads(metadata)) for title, year, metadata in rows)


@dataclass
class LeftOut:
    """Rows that were left out: where they stood, and why."""

    rows: list[dict[str, str]] = field(default_factory=list)

    def add(self, source: str, row: int | str, reason: str, value: object) -> None:
        self.rows.append({"source": source, "row": str(row), "reason": reason, "value": str(value)[:500]})

    def write(self, path: Path) -> None:
        """Write the rows as CSV: source, row, reason, value."""
        columns = ["source", "row", "reason", "value"]
        pd.DataFrame(self.rows, columns=columns).to_csv(path, index=False)

    def summary(self) -> str:
        """Return how many rows were left out for which reason."""
        counts = Counter((row["source"], row["reason"]) for row in self.rows)
        return "; ".join(f"{source}: {reason}: {n}" for (source, reason), n in counts.most_common())


_NAME = re.compile(r"^(.*?)\s*\((\d{4})\)\s*$")


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles plain lists, tuples, strings and numbers, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> object:
        raise InputError(
            f"the pickle asks for {module}.{name}; only plain lists of (title, year) are read, because other "
            "pickles can run code: save the catalog as CSV or JSON lines instead"
        )


def _read_pickle(path: Path) -> list[dict[str, object]]:
    try:
        value = _PlainUnpickler(io.BytesIO(path.read_bytes())).load()
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise InputError(f"{path}: not a readable pickle ({error}); save the catalog again") from None
    if not isinstance(value, list) or not all(isinstance(v, (tuple, list)) and len(v) == 2 for v in value):
        raise InputError(f"{path}: the pickle holds no plain list of (title, year); save the catalog again")
    return [{"title": title, "year": year} for title, year in value]


def _read_csv(path: Path) -> list[dict[str, object]]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream)
        found = set(reader.fieldnames or [])
        if "name" not in found and not {"title", "year"} <= found:
            missing = sorted({"title", "year"} - found)[0]
            raise InputError(
                f"{path}: row 1: column {missing!r} is missing (found {reader.fieldnames}); "
                "the header must name at least title,year"
            )
        rows: list[dict[str, object]] = []
        for number, row in enumerate(reader, start=2):
            if None in row or None in row.values():
                raise InputError(
                    f"{path}: row {number}: {'more' if None in row else 'fewer'} fields than the header names; "
                    "quote fields that hold commas"
                )
            rows.append(dict(row))
        return rows


def _read_parquet(path: Path) -> list[dict[str, object]]:
    try:
        rows = pd.read_parquet(path).to_dict("records")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error})") from None
    for number, row in enumerate(rows, start=1):
        for key, value in row.items():  # pandas gives lists as arrays, and what is missing as NaN
            row[key] = value.tolist() if hasattr(value, "tolist") else value
            row[key] = "" if row[key] is None or row[key] != row[key] else row[key]
        try:  # the canonical table holds the metadata of an item as one JSON object
            row.update(json.loads(row.pop("metadata", "") or "{}"))
        except (TypeError, ValueError):
            raise InputError(f"{path}: row {number}: field 'metadata' is not a JSON object") from None
    return [{str(key): value for key, value in row.items()} for row in rows]


def read_json_lines(path: Path) -> list[dict]:
    """Return the objects of a JSON-lines file.

    Raises `InputError` naming the row for text that is no JSON object.
    """
    rows = []
    with path.open(encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(f"{path}: row {number}: not JSON ({error.msg} at column {error.colno})") from None
            except (ValueError, RecursionError) as error:  # numbers of thousands of digits, brackets without end
                raise InputError(f"{path}: row {number}: not readable JSON ({error})") from None
            if not isinstance(row, dict):
                raise InputError(f"{path}: row {number}: a JSON object is needed, not {type(row).__name__}")
            rows.append(row)
    return rows


def read_rows(path: Path) -> list[dict]:
    """Return the raw rows of a catalog file: CSV, JSON lines, Parquet, or a pickled list of (title, year).

    A row without `title` that has a `name`, "Title" or "Title (Year)", gets title and year from it.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such catalog file; set data.path to where it is")
    readers = {".csv": _read_csv, ".jsonl": read_json_lines, ".pkl": _read_pickle, ".parquet": _read_parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: catalogs are read from {', '.join(readers)}, not {path.suffix or 'this'}")
    try:
        rows = reader(path)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8; convert the file to UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{path}: not readable as CSV ({error}); quote fields, and close every quote") from None
    for row in rows:
        if not row.get("title") and row.get("name"):
            row["title"], year = title_and_year(str(row["name"]))
            row["year"] = year or row.get("year")
    return rows


def title_and_year(name: str) -> tuple[str, str]:
    """Return the two parts of `Title (Year)`, the year empty where the name has none."""
    match = _NAME.match(name)
    return (match.group(1).strip(), match.group(2)) if match else (" ".join(name.split()), "")


def load_catalog(path: Path) -> tuple[Catalog, LeftOut]:
    """Return the catalog of a file in any of the forms of `read_rows`, and what was left out of it.

    Columns beside title, year and name are metadata, but for identifiers (`id`, `..._id`).
    """
    rows = read_rows(path)
    names = dict.fromkeys(key for row in rows for key in row)
    fields = [n for n in names if n not in ("title", "year", "name", "id") and not n.endswith("_id")]
    left_out = LeftOut()
    return build_catalog(rows, fields, left_out, str(path)), left_out


def build_catalog(
    rows: Sequence[dict], metadata_fields: Sequence[str], left_out: LeftOut, source: str = "catalog"
) -> Catalog:
    """Return the catalog of raw rows with `title`, `year` and optional metadata fields.

    Rows without a title or a usable year and repeated items are added to `left_out`.
    """
    items: dict[tuple[str, int], Item] = {}
    for number, row in enumerate(rows, start=1):
        title = " ".join(str(row.get("title") or "").split())
        try:
            year = int(row.get("year") or "")
        except (TypeError, ValueError, OverflowError):
            left_out.add(source, number, "no year", row.get("title"))
            continue
        if not title or year not in YEARS:
            left_out.add(source, number, "no title" if not title else "year out of range", f"{title} ({year})")
            continue
        if (fold(title), year) in items:
            left_out.add(source, number, "duplicate item", f"{title} ({year})")
            continue
        metadata = {}
        for name in metadata_fields:
            value = row.get(name) or ""
            values = value if isinstance(value, list) else str(value).split("|")
            metadata[name] = ", ".join(str(v).strip() for v in values if str(v).strip())
        items[fold(title), year] = Item(title, year, metadata)
    if not items:
        reasons = sorted({row["reason"] for row in left_out.rows})
        raise InputError(
            f"{source}: none of its {len(rows)} rows can be used ({', '.join(reasons) or 'it is empty'}); "
            "every row needs a title and a year"
        )
    return Catalog(items.values())
