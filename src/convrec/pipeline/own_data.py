"""`convrec init`: what the files of a folder are, and the parameters that follow from them."""

import json
import math
import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from datetime import date
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import polars as pl

from convrec.data.csv_files import scan_csv
from convrec.data.json_lines import json_object, numbered_lines
from convrec.data.parquet import parquet_columns
from convrec.data.quarantine import Quarantine
from convrec.data.sources.files import PATTERN
from convrec.data.sources.interaction_log import KNOWN_COLUMNS, count_values
from convrec.data.sources.source import Source
from convrec.data.titles import line
from convrec.pipeline.stages.data import prepare, read_sources
from convrec.project import text as terminal
from convrec.project.config.params import Params, parse_params
from convrec.project.config.period import Period
from convrec.project.config.profiles import apply_profile, compose
from convrec.project.errors import InputError
from convrec.project.yaml import parse_yaml

Named = Mapping[str, str | None]  # the name of a file by its role
Lists = dict[str, list[str]]  # the names of files by role, or of columns by file

LEAST_PROMPTS, LEAST_HELD_OUT = 300, 30  # with 172 test rows, NDCG@20 is known to ±0.028 (docs/adapting.md)
_HEAD, _COMMONEST = 100, 10  # lines of JSON whose keys are the columns; names outside the catalog that are shown
_LARGEST_RATING, _SFT_ROWS = 100, 80_000  # rows of all epochs of SFT together, unless one epoch has more
# Columns of the catalog that name people, with the items for which they are usual.
_PEOPLE = {"director": "movies", "author": "books", "artist": "songs", "developer": "games", "brand": "products"}
_MORE_PEOPLE = ("writer", "actor", "star", "designer", "composer", "publisher", "chef")
_ITEMS = {*_PEOPLE.values(), "films", "albums", "articles", "papers", "recipes", "restaurants", "courses"}
_PUBLISHED, _GENRES = ("books", "articles", "papers"), ("genres", "genre", "categories", "category", "tags", "subjects")
_LIKED = ("purchase", "buy", "order", "like", "liked", "love", "favorite", "favourite", "save", "accept")
_DISLIKED = ("return", "dislike", "disliked", "reject")
# Minutes of one core in the run of ReDial of docs/experiments.md: for 1,000 items (base_model, at most 10 minutes),
# training rows (data, evidence, demonstrations, guidance), rows of SFT, lists of Rank-GRPO, test rows.
_MINUTES = {"items": 1.5, "train": 0.43, "sft": 0.53, "lists": 0.6, "test": 2.6}


def init(folder: Path, named: Named, items: str | None, settings: Sequence[str], dry_run: bool) -> Iterator[str]:
    """Write params.yaml for the files of a folder unless `dry_run`; yield what was found, was decided, and comes next.

    `named` has the names of the files that the user names, by role: catalog, conversations, log. `items` is the word
    for several items. `settings`, as `KEY=VALUE`, go before what is decided here. Raises `InputError` for what cannot
    be trained: files that are missing, unclear or unreadable, names that the catalog lacks, too few prompts.
    """
    columns = {path.name: _columns(path) for path in sorted(folder.glob("[!.]*")) if path.is_file()}
    files = _files_by_role(folder, columns, named)
    yield str(folder)
    for role, names in files.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield from (_told(role, f"{name}{more}: {', '.join(columns[name])}") for name in names[:1])
    for name in sorted(columns.keys() - sum(files.values(), [])):
        yield _told("not used", f"{name}: {', '.join(columns[name])}")
    profile, log = "files" if files["conversations"] else "log", dict[str, dict[str | None, int]]()
    chosen = {key: value for key, _, value in (setting.partition("=") for setting in settings)}
    _decide(chosen, _files_and_words(folder, files, columns, items))
    undated = {"data.validation_period": "null", "data.test_period": "null"}
    if files["log"]:
        path = folder / files["log"][0]
        log = count_values(path, _params(profile, undated | chosen).data.interactions.columns.model_dump())
        _decide(chosen, {} if "data.interactions.liked" in chosen else _liked(path, log["value"]))
    params, quarantine = _params(profile, undated | chosen), Quarantine()
    try:
        source = read_sources(params, quarantine)
    finally:  # this error names the rows that cannot be used, also where none is left
        quarantine.check(params.data.max_quarantined, folder)
    yield from ("", "Found", *_found(folder / files["catalog"][0], source, log, quarantine))
    if (number := source.rows["prompt_id"].nunique()) < LEAST_PROMPTS:
        more = "add a longer log" if log else "add conversations"
        raise InputError(
            f"{folder}: {number} prompts, and {LEAST_PROMPTS} are the least; {more}: 1,500 give a first "
            "impression, and with 5,000, of which a tenth is for test, the gates usually decide"
        )
    _decide(chosen, _periods(source.rows["date"].to_list()))
    _, splits, _ = prepare(_params(profile, chosen), quarantine, source)
    reasons = [f"{number:,} {kind}: {reason}" for (kind, reason), number in quarantine.reasons().most_common()]
    yield _told("left out", "; ".join(reasons) or "nothing")
    quarantine.check(params.data.max_quarantined, folder)
    _decide(chosen, _steps(_params(profile, chosen), len(splits["train"])))
    yield from ("", "Decided", *_decided(_params(profile, chosen), splits, len(source.catalog)))
    changes = [f"{key}={value}" for key, value in chosen.items()]
    yield f"\n{'params.yaml stays as it is (dry run)' if dry_run else apply_profile(profile, changes)}"
    yield " \\\n    --set ".join([f"The same by hand:\n  convrec profile {profile}", *map(shlex.quote, changes)])
    yield "Next:\n  convrec run data\n  convrec preflight\n  python -m flows.train"


def _told(label: str, text: str) -> str:
    width = min(terminal.columns(), 100)
    return textwrap.fill(terminal.plain(text), width, initial_indent=f"  {label:<15}", subsequent_indent=" " * 17)


def _columns(path: Path) -> list[str]:
    """Return the columns of a file, or in their place why it is not read."""
    keys = dict[str, None]()
    try:
        if path.suffix.lower() == ".csv":
            return scan_csv(path).collect_schema().names()
        if path.suffix.lower() == ".parquet":
            return parquet_columns(path)
        if path.suffix.lower() != ".jsonl":
            return ["(not .csv, .jsonl or .parquet)"]
        for _, text in islice(numbered_lines(path), _HEAD):
            with suppress(ValueError):  # the reader puts such a line into the quarantine
                keys |= dict.fromkeys(json_object(text))
    except (InputError, pl.exceptions.PolarsError) as error:
        return [f"({' '.join(str(error).removeprefix(f'{path}: ').split())[:200]})"]
    return list(keys)


def _role(name: str, columns: Sequence[str]) -> str | None:
    """Return what a file is by its columns, None for none of what is read."""
    if {"messages", "groundtruth"} <= {*columns}:
        return "conversations" if Path(name).match(PATTERN) and not name.lower().endswith(".csv") else None
    if all({*columns} & {*KNOWN_COLUMNS[field]} for field in ("user", "item", "time")):
        return "log"
    return "catalog" if {*columns} & {"title", "name"} else None


def _files_by_role(folder: Path, columns: Lists, named: Named) -> Lists:
    """Return the names of the files of each role. Raises `InputError` where one is missing, or several are possible."""
    there = "; ".join(f"{name}: {', '.join(own)}"[:200] for name, own in columns.items()) or "nothing"
    files = {role: [name for name in columns if _role(name, columns[name]) == role] for role in named}
    for role, name in named.items():
        possible = files[role] if role == "conversations" else columns  # of conversations, all files are read
        if name is not None and name not in possible:
            raise InputError(f"--{role} {name}: not among the files of {folder} ({there}); name one of them")
        if role != "conversations":
            files[role] = [name] if name else [one for one in files[role] if one not in named.values()]
    if named["conversations"] or named["log"]:  # then nothing else is read beside the catalog
        files |= {role: [] for role in ("conversations", "log") if not named[role]}
    if several := next((role for role in ("catalog", "log") if len(files[role]) > 1), None):
        names = ", ".join(files[several])
        raise InputError(f"{folder}: each of {names} looks like the {several}; name one with --{several} FILE")
    missing = "catalog, with a column 'title' or 'name'; rename a column, or give --catalog FILE"
    if files["catalog"]:
        missing = (
            f"{PATTERN}.jsonl or .parquet, with messages and groundtruth, and no log, with user, item and time; rename"
        )
        missing += " the file, or give --log FILE and its columns as --set data.interactions.columns.user=NAME"
    if not files["catalog"] or not files["conversations"] + files["log"]:
        raise InputError(f"{folder} (found {there}): no {missing}")
    return files


def _files_and_words(folder: Path, files: Lists, columns: Lists, items: str | None) -> dict[str, Any]:
    """Return the parameters that the names of files and columns decide."""
    catalog, log = files["catalog"][0], next(iter(files["log"]), None)
    fields = {name.lower().removesuffix("s"): name for name in columns[catalog]}
    parts = re.findall("[a-z]+", f"{folder.resolve().name} {' '.join(sum(files.values(), []))}".lower())
    by_name = next((word for part in parts for word in (part, f"{part}s") if word in _ITEMS), None)
    items = items or by_name or next((word for column, word in _PEOPLE.items() if column in fields), "items")
    people = [f"the {fields[name].lower()}" for name in (*_PEOPLE, *_MORE_PEOPLE) if name in fields]
    values = {
        "data.source": ["files", "interactions"] if files["conversations"] and log else None,
        "data.path": str(folder),
        "data.catalog": catalog,
        "data.interactions.log": log,
        "data.interactions.columns.genres": next((name for name in _GENRES if log and name in fields.values()), None),
        "common.domain.item": re.sub("(?<=[cs]h)es$|(?<!serie)s$", "", re.sub("(?<!mov|ser)ies$", "y", items)),
        "common.domain.items": items,
        "common.domain.release": "publication" if items.endswith(_PUBLISHED) else "release",
        "common.domain.people": " and ".join(people) or "who made it",
    }
    return {key: value for key, value in values.items() if value is not None}


def _liked(path: Path, values: Iterable[str | None]) -> dict[str, Any]:
    """Return which values of a log are likes and dislikes. Raises `InputError` where they do not tell."""
    names, key, other = sorted(filter(None, values)), "data.interactions.liked", "data.interactions.disliked"
    numbers = [float(name) for name in names if re.fullmatch(r"-?\d+(\.\d*)?", name)]
    if len(numbers) > len(names) / 2 and 0 < (largest := max(numbers)) <= _LARGEST_RATING:  # of 5: 4 and 2
        return {key: round(0.8 * largest, 2), other: round(0.4 * largest, 2) if largest > 1 else 0.0}
    liked, disliked = ([name for name in names if name.lower() in known] for known in (_LIKED, _DISLIKED))
    if names and not liked:
        raise InputError(
            f"{path}: values {', '.join(names[:5])} do not tell who liked an item; name the events, or the least "
            f"rating, that do, such as --set '{key}=[{names[0]}]' --set {other}=null"
        )
    return {key: liked, other: disliked} if liked else {}


def _decide(chosen: dict[str, str], values: Mapping[str, Any]) -> None:
    """Add values, as YAML, to what is chosen, but for keys that are there, as those that the user gives."""
    for key, value in values.items():
        text = str(value)
        is_plain = re.fullmatch(r"[\w./][\w./ -]*", text) and parse_yaml(text, key) == value
        chosen.setdefault(key, text if is_plain else json.dumps(value, ensure_ascii=False))


def _params(profile: str, chosen: Mapping[str, str]) -> Params:
    return parse_params(compose(profile, [f"{key}={value}" for key, value in chosen.items()]), "convrec init")


def _found(path: Path, source: Source, log: Mapping[str, dict], quarantine: Quarantine) -> Iterator[str]:
    """Yield what the files hold. Raises `InputError` if the catalog has none of the named items."""
    catalog, rows = source.catalog, source.rows
    yield _told("items", f"{len(catalog):,}, {sum(item.year is not None for item in catalog.items):,} with a year")
    if log:
        total = sum(log["user"].values())
        missing = [row["row"] for row in quarantine.rows if row["source"] == "items of the log"]
        yield _told("log", f"{total:,} rows of {len(log['user']):,} users and {len(log['item']):,} items")
        yield _matching("log's items", {name: log["item"].get(name, 0) for name in missing}, total)
    people, prompts = rows[rows["user_id"] != ""]["user_id"].nunique(), rows["prompt_id"].nunique()
    yield _told("conversations", f"{len(rows):,}, {prompts:,} prompts" + f" of {people:,} people" * (people > 0))
    dates = rows[rows["date"] != ""]["date"]
    reach = f"{dates.min()} to {dates.max()}, " * bool(len(dates))
    yield _told("dates", f"{reach}{len(rows) - len(dates):,} rows have none")
    truths = Counter((item["title"], item["year"]) for (items,) in rows.values("groundtruth") for item in items)
    absent = {line(*truth): number for truth, number in truths.items() if catalog.find(*truth) is None}
    if len(absent) == len(truths):
        names, own = (", ".join(map(str, some)) for some in ([*absent][:3], catalog.items[:3]))
        raise InputError(
            f"{path}: the catalog has none of the {len(truths):,} items of groundtruth, such as {names}; its titles "
            f"are {own}, ...; write the same titles and years in both, or name another file with --catalog"
        )
    yield _matching("named items", absent, truths.total())


def _matching(label: str, absent: Mapping[str, int], total: int) -> str:
    others = ", ".join(f"{name} ({number:,})" for name, number in Counter(absent).most_common(_COMMONEST))
    share = f"{1 - sum(absent.values()) / total:.1%} of {total:,} are in the catalog"
    return _told(label, f"{share}; the commonest others: {others}" if others else share)


def _periods(dates: Sequence[str]) -> dict[str, str | None]:
    """Return the periods of validation and test: the last two months, else tenths of the rows by day, else None."""
    dated = [date.fromisoformat(day) for day in sorted(dates) if day]
    if len(dated) >= 0.9 * len(dates):  # the others are dropped
        month = Period.of_month(dated[-1])
        days = [dated[len(dated) * tenth // 10] for tenth in (8, 9)]
        tenths = Period.parse(f"{days[1]}/{dated[-1]}")
        for validation, test, least in ((month.before(), month, 20), (Period(*days), tenths, math.inf)):
            sizes = [sum(first <= day < end for day in dated) for first, end in (validation, test)]
            enough = min(sizes) >= max(LEAST_HELD_OUT, len(dated) / least)
            if enough and sum(day < validation.first for day in dated) >= 0.7 * len(dated):
                return {"data.validation_period": str(validation), "data.test_period": str(test)}
    return {"data.validation_period": None, "data.test_period": None}


def _steps(params: Params, rows: int) -> dict[str, Any]:
    """Return the steps of the trainings where the profile has more than the training rows need."""
    aligned = params.rank_grpo
    lists = aligned.per_device_train_batch_size * aligned.gradient_accumulation_steps
    passes = math.ceil(aligned.num_train_epochs * rows * aligned.num_generations / lists)
    needed = {"sft.num_train_epochs": max(1, _SFT_ROWS // rows), "rank_grpo.max_steps": passes}
    needed["rank_grpo.save_steps"] = max(1, passes // 3)
    return {key: number for key, number in needed.items() if number < (attrgetter(key)(params) or 0)}


def _decided(params: Params, splits: Mapping[str, Sized], items: int) -> Iterator[str]:
    """Yield the decisions in words, with a guess of the minutes."""
    data, words, aligned, epochs = params.data, params.common.domain, params.rank_grpo, params.sft.num_train_epochs
    sizes = {name: len(rows) for name, rows in splits.items()}
    yield _told("source", f"{', '.join(data.sources)}; profile {params.common.profile}")
    yield _told("training", f"{sizes['train']:,} rows")
    for name in ("validation", "test"):
        period = getattr(data, f"{name}_period") or f"a share {data.held_out_share} of the people"
        yield _told(name, f"{sizes[name]:,} rows of {period}")
    yield _told("words", f"{words.item}, {words.items} (--items changes them); {words.release}; {words.people}")
    yield _told("model", f"registered as {params.registered_model}")
    yield _told("steps", f"epochs of SFT: {epochs:g}; steps of Rank-GRPO: at most {aligned.max_steps}")
    lists = (aligned.max_steps or 0) * aligned.per_device_train_batch_size * aligned.gradient_accumulation_steps
    numbers = {**sizes, "sft": epochs * sizes["train"], "lists": lists, "items": min(items, 6_667)}
    minutes = sum(each * numbers[name] / 1000 for name, each in _MINUTES.items())
    note = "minutes of one core, a rough guess from another run; `convrec preflight` measures steps and memory"
    yield _told("time", f"{minutes:.0f} to {2 * minutes:.0f} {note}")
