"""Stage `data`: raw conversations and catalog in, canonical splits out."""

import logging
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from convrec.config.params import Params
from convrec.data.catalog import DUPLICATE, Catalog, build_catalog
from convrec.data.checks import check_rows, drop_leaks
from convrec.data.conversations import (
    SPLITS,
    require_filled,
    split_by_conversation,
    split_by_month,
    with_repeatable,
)
from convrec.data.leakage import find_leaks
from convrec.data.quarantine import Quarantine
from convrec.data.schemas import conform, write_catalog, write_conversations
from convrec.data.sources.files import read_files
from convrec.data.sources.histories import SHIPPED, Sizes
from convrec.data.sources.interaction_log import Feedback
from convrec.data.sources.interactions import read_interactions
from convrec.data.sources.reddit import read_reddit
from convrec.data.sources.reddit_movie import read_reddit_movie
from convrec.data.sources.redial import read_redial
from convrec.data.sources.synthetic import embedded_rows, simulate
from convrec.data.statistics import describe
from convrec.errors import InputError
from convrec.files.results import write_json, write_plot
from convrec.paths import Paths
from convrec.tracking import Run, flatten

logger = logging.getLogger(__name__)

TEMPLATE_SHARE = 0.5  # words in more than so many prompts are an instruction, and no sign that two prompts are alike


class Source(NamedTuple):
    """What a source gives; `splits` names each row's split where the source has made them.

    `world` has the oracle's lists and the tastes of the embedded world.
    """

    catalog: Catalog
    rows: pd.DataFrame
    splits: pd.Series | None = None
    world: pd.DataFrame | None = None


def _months(first: str, number: int) -> list[str]:
    return [str(month) for month in pd.period_range(first, periods=number, freq="M")]


def _load(params: Params, quarantine: Quarantine) -> Source:
    """Return what the files of the source hold, as it is read there."""
    config, folder = params.data, Path(params.data.path)
    if config.source == "synthetic":
        catalog, _ = build_catalog(embedded_rows(), ("genres", "keywords"), quarantine)
        months = _months(config.synthetic.first_month, config.synthetic.num_months)
        rows, world = simulate(
            catalog, params.common.seed, config.synthetic.num_conversations, months, params.common.list_length
        )
        return Source(catalog, rows, world=world)
    if config.source == "reddit":
        catalog, splits = read_reddit(folder, config.catalog or "", quarantine)
        rows = pd.concat(splits, names=["split"]).reset_index("split")
        return Source(catalog, rows, rows.pop("split"))
    if config.source == "reddit_movie":
        return Source(*read_reddit_movie(folder, config.min_upvotes, quarantine))
    if config.source == "redial":
        return Source(*read_redial(folder, quarantine))
    if config.source == "interactions":
        return Source(*_read_log(params, quarantine))
    return Source(*read_files(folder, config.catalog or "", quarantine, config.line_column))


def _read_log(params: Params, quarantine: Quarantine) -> tuple[Catalog, pd.DataFrame]:
    config, log, folder = params.data, params.data.interactions, Path(params.data.path)
    months = []
    if config.validation_month and config.test_month:
        after = pd.Period(config.validation_month) + 1, pd.Period(config.test_month) + 1
        months = sorted({config.validation_month, config.test_month, *map(str, after)})
    return read_interactions(
        folder,
        quarantine,
        files=(log.log, config.catalog),
        columns=log.columns.model_dump(),
        feedback=Feedback(log.liked, log.disliked),
        sizes=Sizes(**log.model_dump(include=set(Sizes.__dataclass_fields__))),
        max_prompts=log.max_prompts,
        genres=log.genres,
        months=months,
        templates=folder / log.templates if log.templates else SHIPPED,
        domain=(params.common.domain.item, params.common.domain.items),
        seed=params.common.seed,
        line_column=config.line_column,
        repeats=params.common.recommend_seen,
    )


def _is_by_month(rows: pd.DataFrame, own: pd.Series | None, params: Params) -> bool:
    """Tell whether rows are split by month: where months are given, and the source has dates and no splits."""
    config = params.data
    if own is not None or config.validation_month is None:
        return False
    if (rows["date"] == "").all():
        logger.warning(
            "no row has a date: rows are split by conversation (data.validation_share = %s, data.test_share = %s), and "
            "data.validation_month and data.test_month are ignored",
            config.validation_share,
            config.test_share,
        )
        return False
    return True


def _split(rows: pd.DataFrame, own: pd.Series | None, by_month: bool, params: Params) -> dict[str, pd.DataFrame]:
    """Return the splits: the source's own, or by month, or by conversation. Raises `InputError` on an empty one."""
    config = params.data
    if rows.empty:
        raise InputError("no row is left; data/processed/quarantine.parquet has the reasons: look at data.checks")
    if own is not None:
        labels = own.reindex(rows.index)
        return require_filled({name: rows[labels == name] for name in SPLITS}, "check the folder of data.path")
    if by_month and config.validation_month and config.test_month:
        splits = split_by_month(rows, config.validation_month, config.test_month)
        unused = len(rows) - sum(map(len, splits.values()))
        if unused:
            logger.info("%d rows are of other months than those of the splits", unused)
        return splits
    shares = (config.validation_share, config.test_share)
    group = rows["user_id" if config.source == "interactions" else "conversation_id"]
    return split_by_conversation(rows, group, *shares, params.common.seed)


def prepare(params: Params, quarantine: Quarantine) -> tuple[Source, dict[str, pd.DataFrame], dict[str, int]]:
    """Return the source, its canonical and checked splits, and how often each problem was met.

    Raises `InputError` on files that cannot be read and on an empty split.
    """
    config = params.data
    source = _load(params, quarantine)
    source.catalog.check_lines()
    rows = conform(source.rows.reset_index(drop=True))
    if params.common.recommend_seen:
        rows = with_repeatable(rows)
    own = None if source.splits is None else source.splits.reset_index(drop=True)
    by_month = _is_by_month(rows, own, params)
    rows, problems = check_rows(
        rows,
        source.catalog,
        quarantine,
        dated=by_month,
        **config.checks.model_dump(include={"outside_catalog", "seen_truth", "duplicate_rows"}),
    )
    splits = _split(rows, own, by_month, params)
    held_out = {name: splits[name] for name in ("validation", "test")}
    leaks = find_leaks(splits["train"], held_out, config.checks.similarity, TEMPLATE_SHARE)
    problems["leaks"] = sum(leak is not None for leak in leaks)
    if config.checks.leaks == "drop":
        splits["train"] = drop_leaks(splits["train"], leaks, quarantine)
    return source, require_filled(splits, "every row of it was dropped: look at data.checks"), problems


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write catalog, splits, what was left out, their counts and their statistics.

    Raises `InputError` on files that cannot be read, an empty split, or too many rows left out.
    """
    quarantine = Quarantine()
    paths.processed.mkdir(parents=True, exist_ok=True)
    try:
        source, splits, problems = prepare(params, quarantine)
    finally:  # what was left out tells why nothing is left
        quarantine.write(paths.quarantine)
    merged = quarantine.reasons()["catalog", DUPLICATE]
    if quarantine.rows:
        logger.info("left out, see %s: %s", paths.quarantine, quarantine.summary())
    quarantine.check(params.data.max_quarantined, paths.quarantine)
    write_catalog(source.catalog, paths.catalog)
    for name, rows in splits.items():
        write_conversations(rows, paths.split(name))
    if source.world is not None:
        source.world.to_parquet(paths.world, index=False)
    counts = {name: {"rows": len(rows), "prompts": int(rows["prompt_id"].nunique())} for name, rows in splits.items()}
    statistics, plots = describe(splits, source.catalog)
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
    write_json(paths.metrics("data"), metrics)
    for name, table in plots.items():
        write_plot(paths.plot(name), table)
    record.log_metrics({name.replace(".", "/"): float(value) for name, value in flatten(metrics).items()})
    record.log_dataset(paths.catalog, "catalog")
    for name in SPLITS:
        record.log_dataset(paths.split(name), name)
    record.log_artifact(paths.quarantine)
