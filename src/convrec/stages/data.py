"""Stage `data`: raw conversations and catalog in, canonical splits out."""

from pathlib import Path

import pandas as pd

from convrec.config import Params
from convrec.data.catalog import Catalog, LeftOut, build_catalog
from convrec.data.conversations import COLUMNS, SPLITS, split_by_conversation, split_by_month, write_rows
from convrec.data.reddit import read_reddit
from convrec.data.reddit_movie import read_reddit_movie
from convrec.data.redial import read_redial
from convrec.data.synthetic import embedded_rows, simulate
from convrec.errors import InputError
from convrec.paths import Paths
from convrec.stages.files import write_json
from convrec.tracking import Run


def _months(first: str, number: int) -> list[str]:
    return [str(month) for month in pd.period_range(first, periods=number, freq="M")]


def _load(params: Params, left_out: LeftOut) -> tuple[Catalog, dict[str, pd.DataFrame], pd.DataFrame | None]:
    """Return the catalog, the splits, and for the embedded world its oracle and tastes."""
    config = params.data
    if config.source == "synthetic":
        catalog = build_catalog(embedded_rows(), ("genres", "keywords"), left_out)
        rows, world = simulate(
            catalog,
            params.common.seed,
            config.synthetic.num_conversations,
            _months(config.synthetic.first_month, config.synthetic.num_months),
            params.common.list_length,
        )
        return catalog, split_by_month(rows, config.validation_month or "", config.test_month or ""), world
    if config.source == "reddit":
        return *read_reddit(Path(config.path), config.catalog or "", left_out), None
    if config.source == "reddit_movie":
        catalog, rows = read_reddit_movie(Path(config.path), config.min_upvotes, left_out)
        return (
            catalog,
            split_by_month(rows[list(COLUMNS)], config.validation_month or "", config.test_month or ""),
            None,
        )
    catalog, rows = read_redial(Path(config.path), left_out)
    splits = split_by_conversation(
        rows[list(COLUMNS)],
        rows["conversation_id"],
        config.validation_share,
        config.test_share,
        params.common.seed,
    )
    return catalog, splits, None


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write catalog, splits, what was left out, and their counts.

    Raises `InputError` on files that cannot be read, an empty split, or too many rows left out.
    """
    left_out = LeftOut()
    catalog, splits, world = _load(params, left_out)
    num_truths = sum(len(row) for rows in splits.values() for row in rows["groundtruth"])
    total = len(catalog) + num_truths + len(left_out.rows)
    share = len(left_out.rows) / total
    paths.processed.mkdir(parents=True, exist_ok=True)
    left_out.write(paths.left_out)
    if share > params.data.max_left_out:
        raise InputError(
            f"{len(left_out.rows)} of {total} catalog rows and ground-truth entries cannot be used: a share of "
            f"{share:.3f}, above data.max_left_out = {params.data.max_left_out}; {left_out.summary()}"
        )
    write_rows(catalog.to_frame(), paths.catalog)
    for name, rows in splits.items():
        write_rows(rows, paths.split(name))
    if world is not None:
        write_rows(world, paths.world)
    counts = {name: {"rows": len(rows), "prompts": int(rows["prompt_id"].nunique())} for name, rows in splits.items()}
    metrics = {"catalog": len(catalog), "left_out": len(left_out.rows), "left_out_share": share, **counts}
    write_json(paths.metrics("data"), metrics)
    record.log_dataset(paths.catalog, "catalog")
    for name in SPLITS:
        record.log_dataset(paths.split(name), name)
    record.log_artifact(paths.left_out)
