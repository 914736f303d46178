"""Stage `data`: raw conversations and catalog in, canonical splits out."""

import logging
from collections import Counter
from importlib import import_module
from pathlib import Path

from rapidfuzz import process

from convrec.data.catalog import DUPLICATE, Catalog
from convrec.data.checks import check_rows, drop_leaks
from convrec.data.conversations import SPLITS, require_filled, split_by_period, split_by_person, with_repeatable
from convrec.data.leakage import find_leaks
from convrec.data.quarantine import Quarantine
from convrec.data.row_files import Rows
from convrec.data.schemas import write_catalog, write_conversations
from convrec.data.sources.feedback import FILE, read_feedback
from convrec.data.sources.source import Source, combine
from convrec.data.statistics import describe
from convrec.data.titles import line
from convrec.project.config.data import Data
from convrec.project.config.params import Params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.project.results import write_plot
from convrec.registry.tracking import Run

logger = logging.getLogger(__name__)

SIMILARITY = 0.8  # prompts at or above this similarity are nearly the same
TEMPLATE_SHARE = 0.5  # words in a larger share of prompts belong to the instruction and do not make two prompts similar
OUTSIDE_SHARE = 0.2  # a larger share of ground truth outside the catalog is a warning
_COMMONEST = 10  # of ground truth outside the catalog


def _is_by_period(source: Source, config: Data) -> bool:
    """Return whether rows are split by period: periods are given, and the source has dates and no splits of its own."""
    if source.has_splits or config.validation_period is None:
        return False
    if (source.rows["date"] == "").all():
        logger.warning(
            "no row has a date: rows are split by person, by data.held_out_share; "
            "data.validation_period and data.test_period are ignored"
        )
        return False
    return True


def _split(source: Source, rows: Rows, by_period: bool, config: Data, seed: int) -> dict[str, Rows]:
    """Return the splits of the checked rows: the source's own, by period, or by shares of its people.

    Raises `InputError` if one is empty.
    """
    if not len(rows):
        raise InputError("no row is left; data/processed/quarantine.parquet has the reasons; check data.checks")
    if source.has_splits:
        own = rows["split"]
        return require_filled({name: rows[own == name] for name in SPLITS}, "check the folder of data.path")
    if by_period and config.validation_period and config.test_period:
        splits = split_by_period(rows, config.validation_period, config.test_period)
        unused = len(rows) - sum(map(len, splits.values()))
        if unused:
            logger.info("%d rows are not in the periods of the splits and are not used", unused)
        return splits
    return split_by_person(rows, config.held_out_share, seed)


def read_sources(params: Params, quarantine: Quarantine) -> Source:
    """Return the rows of all sources, with the catalog of the first."""
    config, sources = params.data, dict[str, Source]()
    for name in config.sources:
        if name == "feedback":
            catalog = sources[config.sources[0]].catalog
            sources[name] = read_feedback(FILE, quarantine, catalog=catalog)
        else:
            read = getattr(import_module(f"convrec.data.sources.{name}"), f"read_{name}")
            source: Source = read(Path(config.path), quarantine, **params.source_options(name))
            sources[name] = source.compatible() if config.title_form == "NFKC" else source
    return combine(sources)


def _require_open_items(splits: dict[str, Rows], catalog: Catalog, length: int) -> None:
    """Raise `InputError` for a prompt whose seen titles leave too few items for a list, on which training would end."""
    for name, rows in splits.items():
        for prompt, seen in rows.values("prompt_id", "seen_titles"):
            left = len(catalog) - len(catalog.indices_of_titles(seen))
            if left < length:
                raise InputError(
                    f"{name} split, prompt {prompt!r}: {left} of the catalog's {len(catalog)} items are left without "
                    f"those that it names, fewer than common.list_length = {length}; lower that, or remove the row"
                )


def prepare(
    params: Params, quarantine: Quarantine, source: Source | None = None
) -> tuple[Source, dict[str, Rows], dict[str, int]]:
    """Return the source, its canonical and checked splits, and how often each problem was met.

    `source` is what `read_sources` has returned, if it has been called.
    Raises `InputError` on files that cannot be read, on an empty split, and on a row without items for a list.
    """
    config = params.data
    source = source or read_sources(params, quarantine)
    source.catalog.check_lines()
    by_period = _is_by_period(source, config)
    rows, problems = check_rows(
        map(with_repeatable, source.rows) if params.common.recommend_seen else source.rows,
        source.catalog,
        quarantine,
        dated=by_period,
        **config.checks.model_dump(include={"seen_truth", "duplicate_rows"}),
    )
    splits = _split(source, rows, by_period, config, params.common.seed)
    held_out = {name: splits[name] for name in ("validation", "test")}
    leaks = find_leaks(splits["train"], held_out, SIMILARITY, TEMPLATE_SHARE)
    problems["leaks"] = sum(leak is not None for leak in leaks)
    if config.checks.leaks == "drop":
        splits["train"] = drop_leaks(splits["train"], leaks, quarantine)
    splits = require_filled(splits, "every row of it was dropped; check data.checks")
    _require_open_items(splits, source.catalog, params.common.list_length)
    return source, splits, problems


def _report_outside(splits: dict[str, Rows], catalog: Catalog, share: float) -> None:
    """Tell what of the test split's ground truth is not in the catalog: the commonest, each with the nearest item.

    Raises `InputError` if all of it is outside: no list could be right.
    """
    truths = [(item["title"], item["year"]) for (items,) in splits["test"].values("groundtruth") for item in items]
    outside = Counter(line(*truth) for truth in truths if catalog.find(*truth) is None)
    if not outside:
        return
    lines = [str(item) for item in catalog.items]
    commonest = [(name, number, process.extractOne(name, lines)[0]) for name, number in outside.most_common(_COMMONEST)]
    names = ", ".join(f"{name!r} ({number:,} times; nearest item: {item!r})" for name, number, item in commonest)
    message = (
        f"{100 * share:.1f} % of the test split's ground truth is not in the catalog, so no list can hit it. "
        f"Commonest: {names}; compare titles and years of conversations and catalog"
    )
    if share == 1:
        raise InputError(message)
    logger.log(logging.WARNING if share > OUTSIDE_SHARE else logging.INFO, message)


def _period(rows: Rows) -> str:
    """Return the first and the last date of the rows in brackets, such as " (2022-01-01 to 2022-10-28)"."""
    dates = rows["date"][rows["date"] != ""]
    return "" if dates.empty else f" ({dates.min()} to {dates.max()})"


def _report_years(splits: dict[str, Rows], catalog: Catalog) -> None:
    """Warn if the ground truth has years and no item has one: then the catalog's column probably has another name."""
    truths = splits["train"].values("groundtruth")
    has_years = any(item["year"] is not None for (items,) in truths for item in items)
    if has_years and all(item.year is None for item in catalog.items):
        logger.warning("the ground truth has years, but no item does; if the catalog has them, name its column `year`")


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write the catalog, the splits, the quarantine, and counts and statistics of all.

    Raises `InputError` on files that cannot be read, an empty split, too many rows left out, or a row without items for
    a list.
    """
    quarantine = Quarantine()
    paths.processed.mkdir(parents=True, exist_ok=True)
    try:
        source, splits, problems = prepare(params, quarantine)
    finally:  # the quarantine explains why no row is left
        quarantine.write(paths.quarantine)
    merged = quarantine.reasons()["catalog", DUPLICATE]
    if quarantine.rows:
        logger.info("left out, see %s: %s", paths.quarantine, quarantine.summary())
    quarantine.check(params.data.max_quarantined, paths.quarantine)
    write_catalog(source.catalog, paths.catalog)
    for name, rows in splits.items():
        write_conversations(rows, paths.split(name))
    paths.world.unlink(missing_ok=True)  # of an earlier source
    if source.world is not None:
        source.world.to_parquet(paths.world, index=False)
    counts = {name: {"rows": len(rows), "prompts": int(rows["prompt_id"].nunique())} for name, rows in splits.items()}
    statistics, plots = describe(splits, source.catalog)
    _report_years(splits, source.catalog)
    _report_outside(splits, source.catalog, statistics["outside_catalog"]["test"])
    metrics = {
        "catalog": len(source.catalog),
        "merged": merged,
        "aliases": sum(len(item.aliases) for item in source.catalog.items),
        "quarantined": len(quarantine.rows),
        "quarantined_share": quarantine.shares(),
        "problems": problems,
        **counts,
        "statistics": statistics,
    }
    headlines = {name: metrics[name] for name in ("catalog", "quarantined")}
    headlines |= {name: {"rows": count["rows"]} for name, count in counts.items()}
    record.log_results("data", headlines, metrics, paths)
    sizes = ", ".join(f"{counts[name]['rows']:,} {name}{_period(rows)}" for name, rows in splits.items())
    same = f" ({merged:,} merged: same id, or title and year, as an earlier row)" if merged else ""
    logger.info("%s items%s; rows: %s", f"{len(source.catalog):,}", same, sizes)
    for name, table in plots.items():
        write_plot(paths.plot(name), table)
    record.log_dataset(paths.catalog, "catalog")
    for name in SPLITS:
        record.log_dataset(paths.split(name), name)
    record.log_artifact(paths.quarantine)
