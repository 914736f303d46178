"""The raw Reddit-Movie dump: CSVs with the turns of threads, films as IMDb ids in the texts, and the films' names.

A thread is a seeker's post and the replies below it; the context of a turn is the path from the post to its parent.
Source: He et al. 2023, "Large Language Models as Zero-Shot Conversational Recommenders".
"""

import json
import re
from pathlib import Path

import polars as pl

from convrec.data.catalog import Catalog, build_catalog
from convrec.data.conversations import prompt_key
from convrec.data.quarantine import Quarantine
from convrec.data.sources.reddit_turns import list_of_ids, read_turns
from convrec.data.sources.source import Source
from convrec.data.titles import title_and_year
from convrec.project.errors import InputError
from convrec.project.text import is_clean

NAMES = "id2name.json"
_IMDB_ID = re.compile(r"tt[0-9]+")
_END = "\x03"  # follows each id while names replace ids, so that tt1234567 is not found within tt12345678


def _names(folder: Path, quarantine: Quarantine) -> dict[str, str]:
    """Return the names by IMDb id, in the order of the ids' numbers."""
    path = folder / NAMES
    try:
        pairs = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=list)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; it maps IMDb ids to `Title (Year)`: download it too") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8; convert the file to UTF-8") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not readable JSON ({error}); download the file again") from None
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        raise InputError(f"{path}: one JSON object of IMDb ids and names is needed; download the file again")
    names: dict[str, str] = {}
    quarantine.count("catalog", len(pairs))
    for key, name in pairs:
        problem = None
        if not _IMDB_ID.fullmatch(key):
            problem = "no IMDb id"
        elif key in names:
            problem = "the same id again"
        elif not isinstance(name, str) or not name.strip():
            problem = "no title"
        elif not is_clean(name):
            problem = "NUL or half a character"
        if problem:
            quarantine.add("catalog", key, problem, name)
        else:
            names[key] = " ".join(name.split())
    return dict(sorted(names.items(), key=lambda pair: (len(pair[0]), pair[0])))


def _movies(folder: Path, quarantine: Quarantine) -> tuple[Catalog, pl.DataFrame]:
    """Return the catalog, and a table of all named ids.

    Columns: id, key (ids of one item share it), name, title, year, known (whether the catalog has the item).
    """
    names = _names(folder, quarantine)
    ids = list(names)
    dropped = Quarantine()
    catalog, places = build_catalog([{"title": name} for name in names.values()], (), dropped, str(folder / NAMES))
    for row in dropped.rows:
        quarantine.add("catalog", ids[int(row["row"]) - 1], row["reason"], row["value"])
    keys: dict[int, str] = {}
    table: list[tuple[str, str, str, str, int | None, bool]] = []
    for (movie, name), place in zip(names.items(), places, strict=True):
        if place is None:
            table.append((movie, movie, name, title_and_year(name)[0] or name, None, False))
        else:
            item = catalog.items[place]
            table.append((movie, keys.setdefault(place, movie), str(item), item.title, item.year, True))
    texts = dict.fromkeys(("id", "key", "name", "title"), pl.String)
    return catalog, pl.DataFrame(table, {**texts, "year": pl.Int64, "known": pl.Boolean}, orient="row")


def _mentions(turns: pl.DataFrame, movies: pl.DataFrame) -> pl.DataFrame:
    """Return the films that each turn names, once each, in the order of the text: turn, key, id, title, year, known."""
    ids = pl.col("text").str.extract_all("tt[0-9]+").alias("id")
    naming = turns.filter(pl.col("text").str.contains("tt[0-9]")).select("turn", ids).explode("id")
    named = naming.join(movies.drop("name"), on="id", how="left", maintain_order="left")
    named = named.with_columns(pl.coalesce("key", "id").alias("key"), pl.col("known").fill_null(False))
    return named.unique(["turn", "key"], keep="first", maintain_order=True)


def _answers(turns: pl.DataFrame, mentions: pl.DataFrame, min_upvotes: int, quarantine: Quarantine) -> pl.DataFrame:
    """Return the turns of recommenders that name films, have the upvotes, and whose cells can be used."""
    naming = turns.filter(~pl.col("is_seeker")).join(mentions.select("turn"), on="turn", how="semi")
    upvoted = naming.filter(pl.col("upvotes").is_null() | (pl.col("upvotes") >= min_upvotes))
    quarantine.count("conversations", len(upvoted))
    context = pl.col("context_turn_ids")
    problem = (
        pl.when(pl.col("upvotes").is_null())
        .then(pl.lit("upvotes is no number"))
        .when(pl.col("utc_time").is_null())
        .then(pl.lit("utc_time is no time from 2005 to 2099"))
        .when(pl.col("conv_id") == "")
        .then(pl.lit("no conv_id"))
        .when(~context.str.contains("""['"]"""))
        .then(pl.lit("no context"))
        .when(list_of_ids(context).list.contains(pl.col("turn_id")))
        .then(pl.lit("a turn twice in its path"))
    )
    return _without_problems(upvoted.with_columns(problem.alias("problem")), quarantine)


def _without_problems(answers: pl.DataFrame, quarantine: Quarantine) -> pl.DataFrame:
    """Return the answers that have no `problem`, and add the others to what was left out."""
    bad = answers.filter(pl.col("problem").is_not_null()).sort("turn_id")
    for turn_id, problem, context in bad.select("turn_id", "problem", "context_turn_ids").iter_rows():
        quarantine.add("conversations", turn_id, problem, context)
    return answers.filter(pl.col("problem").is_null()).drop("problem")


def _paths(answers: pl.DataFrame, turns: pl.DataFrame, quarantine: Quarantine) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the answers with the number of their context, and the turns of each context: context, turn, is_seeker.

    Both are sorted; answers to one turn share a context.
    """
    contexts = answers.select("context_turn_ids").unique().sort("context_turn_ids").with_row_index("context")
    ids = list_of_ids(pl.col("context_turn_ids")).alias("turn_id")
    steps = contexts.select("context", ids).explode("turn_id")
    steps = steps.join(turns.select("turn_id", "turn", "is_seeker"), on="turn_id", how="left", maintain_order="left")
    words = turns.select("turn", (pl.col("text") != "").alias("words"))
    steps = steps.join(words, on="turn", how="left", maintain_order="left")
    problem = (
        pl.when(pl.col("turn").is_null().any())
        .then(pl.lit("a turn of its context is missing"))
        .when(pl.col("turn").n_unique() < pl.len())
        .then(pl.lit("a turn twice in its path"))
        .when(~(pl.col("is_seeker") & pl.col("words")).any())
        .then(pl.lit("no words of the seeker in its context"))
    )
    problems = steps.group_by("context").agg(problem.alias("problem"))
    answers = answers.join(contexts, on="context_turn_ids").join(problems, on="context")
    answers = _without_problems(answers, quarantine)
    return answers.sort("utc_time", "turn_id"), steps.join(answers, on="context", how="semi", maintain_order="left")


def _truths(answers: pl.DataFrame, mentions: pl.DataFrame, named: pl.DataFrame, quarantine: Quarantine) -> pl.DataFrame:
    """Return the ground truth of each answer that has any: turn, groundtruth."""
    fresh = answers.select("turn", "turn_id", "context").join(mentions, on="turn", maintain_order="left_right")
    fresh = fresh.join(named, on=["context", "key"], how="anti", maintain_order="left")
    quarantine.count("groundtruth", len(fresh))
    _count_unusable(fresh.filter(~pl.col("known")), "groundtruth", quarantine)
    usable = fresh.filter("known")
    return usable.group_by("turn", maintain_order=True).agg(pl.struct("title", "year").alias("groundtruth"))


def _count_unusable(mentions: pl.DataFrame, source: str, quarantine: Quarantine) -> None:
    """Add mentions of films that have no name, or that the catalog lacks, to what was left out."""
    for turn_id, movie, title in mentions.select("turn_id", "id", "title").sort("turn_id", "id").iter_rows():
        reason = f"no name in {NAMES}" if title is None else "not in the catalog"
        quarantine.add(source, turn_id, reason, movie if title is None else f"{movie} {title}")


def _messages(steps: pl.DataFrame, turns: pl.DataFrame, movies: pl.DataFrame) -> pl.DataFrame:
    """Return the messages of each context, ids replaced by names, turns of one role joined: context, messages."""
    used = turns.filter(pl.col("text") != "").join(steps.select("turn").unique(), on="turn", how="semi")
    marked = pl.col("text").str.replace_all("(tt[0-9]+)", f"${{1}}{_END}")
    text = marked.str.replace_many([f"{movie}{_END}" for movie in movies["id"]], movies["name"].to_list())
    text = text.str.replace_all(f"(tt[0-9]+){_END}", "${1}")
    words = used.select("turn", pl.when(pl.col("text").str.contains("tt[0-9]")).then(text).otherwise("text"))
    role = pl.when("is_seeker").then(pl.lit("user")).otherwise(pl.lit("assistant")).alias("role")
    lines = steps.select("context", "turn", role).join(words, on="turn", maintain_order="left")
    changed = pl.struct("context", "role") != pl.struct("context", "role").shift(1)
    lines = lines.with_columns(changed.fill_null(True).cum_sum().alias("message"))
    joined = lines.group_by("message", maintain_order=True).agg(
        pl.first("context"), pl.first("role"), pl.col("text").str.join("\n").alias("content")
    )
    return joined.group_by("context", maintain_order=True).agg(pl.struct("role", "content").alias("messages"))


def _prompt_ids(messages: pl.Series) -> pl.Series:
    """Return the ids of prompts: equal messages have equal ids, on every machine and in every version of Polars."""
    ids: list[str] = []
    for part in messages.to_frame().iter_slices(10_000):
        ids += map(prompt_key, part.to_series().to_list())
    return pl.Series("prompt_id", ids, pl.String)


def read_reddit_movie(folder: Path, quarantine: Quarantine, *, min_upvotes: int) -> Source:
    """Return the catalog and the canonical rows in the order of time.

    Each turn of a recommender with at least `min_upvotes` that names films which its context has not named gives a
    row: the turns of its context as messages, those films as ground truth, the films of the context as seen, its
    day in UTC as date, and the seeker who speaks first as user. Rows that share a prompt share its `prompt_id`. The
    frame's types are Arrow's; it is the same whatever the order of files and rows. What cannot be used is added to
    `quarantine`.
    Raises `InputError` on missing or unreadable files, and if there is no row.
    """
    if not folder.is_dir():
        raise InputError(f"data.path = {str(folder)!r}: no such folder; name the folder of the raw Reddit-Movie CSVs")
    catalog, movies = _movies(folder, quarantine)
    turns = read_turns(folder, quarantine).with_row_index("turn")
    mentions = _mentions(turns, movies)
    answers, steps = _paths(_answers(turns, mentions, min_upvotes, quarantine), turns, quarantine)
    in_context = steps.select("context", "turn").join(mentions, on="turn", maintain_order="left_right")
    truths = _truths(answers, mentions, in_context.select("context", "key").unique(), quarantine)
    rows = answers.join(truths, on="turn", maintain_order="left")
    if rows.is_empty():
        raise InputError(
            f"data.path = {str(folder)!r}: no recommender's turn of at least {min_upvotes} upvotes names a new film "
            f"of the catalog ({quarantine.summary() or 'no row was left out'}); check the files and data.min_upvotes"
        )
    steps = steps.join(rows, on="context", how="semi", maintain_order="left")
    in_context = in_context.join(rows, on="context", how="semi", maintain_order="left")
    quarantine.count("seen_titles", in_context.select("turn", "id").n_unique())
    unnamed = in_context.filter(pl.col("title").is_null()).unique(["turn", "id"])
    _count_unusable(unnamed.join(turns.select("turn", "turn_id"), on="turn"), "seen_titles", quarantine)
    seen = in_context.filter(pl.col("title").is_not_null()).unique(["context", "title"], maintain_order=True)
    seen = seen.group_by("context", maintain_order=True).agg(pl.col("title").alias("seen_titles"))
    asking = steps.filter("is_seeker").join(turns.select("turn", "user_id"), on="turn", maintain_order="left")
    seekers = asking.group_by("context", maintain_order=True).agg(pl.col("user_id").first().alias("seeker"))
    messages = _messages(steps, turns, movies)
    messages = messages.with_columns(_prompt_ids(messages["messages"]))
    rows = rows.join(messages, on="context", how="left", maintain_order="left")
    rows = rows.join(seen, on="context", how="left", maintain_order="left")
    rows = rows.join(seekers, on="context", how="left", maintain_order="left")
    canonical = rows.select(
        pl.col("conv_id").alias("conversation_id"),
        "prompt_id",
        pl.col("seeker").alias("user_id"),
        pl.from_epoch("utc_time").dt.strftime("%Y-%m-%d").alias("date"),
        "messages",
        "groundtruth",
        pl.col("seen_titles").fill_null([]),
        pl.lit([], pl.List(pl.String)).alias("disliked_titles"),
    )
    return Source(catalog, canonical.to_pandas(use_pyarrow_extension_array=True))
