"""Stage `report`: what the other stages measured, on one page."""

from collections import Counter
from typing import Any

import pandas as pd
from pandas.errors import EmptyDataError

from convrec.config import Params
from convrec.data.catalog import Catalog
from convrec.data.conversations import SPLITS, distinct_prompts, read_rows, truths
from convrec.evaluation.data_figures import DATA_PLOTS
from convrec.evaluation.report import DataFile, Example, judge_lines, render_report
from convrec.paths import Path, Paths
from convrec.stages.files import STEP_COLUMNS, read_catalog, read_json
from convrec.tracking import Run, file_md5, flatten, git_state

COMPARED = ("sft", "rank_grpo")  # the systems whose lists stand side by side
DEMONSTRATION_EXAMPLES = 2  # validation prompts whose lists are shown after each step
PLOTS = (*DATA_PLOTS, "popularity", "adjust", "sft", "reward", "reward_by_rank", "validation")


def _read_plot(path: Path) -> pd.DataFrame:
    """Return a curve; an empty table where a run was too short to log a point."""
    try:
        return pd.read_csv(path)
    except EmptyDataError:
        return pd.DataFrame()


def _data_files(paths: Paths) -> list[DataFile]:
    catalog = DataFile("catalog", len(pd.read_parquet(paths.catalog)), None, None, file_md5(paths.catalog))
    found = [catalog]
    for name in SPLITS:
        rows = pd.read_parquet(paths.split(name), columns=["prompt_id", "date"])
        dates = rows["date"][rows["date"].fillna("") != ""]
        period = None if dates.empty else (dates.min(), dates.max())
        found.append(DataFile(name, len(rows), rows["prompt_id"].nunique(), period, file_md5(paths.split(name))))
    return found


def _examples(
    rows: list[dict[str, Any]], lists: dict[str, dict[str, str]], number: int, catalog: Catalog, num_ranks: int
) -> list[Example]:
    """Return the first prompts that have lists, with the judged lists side by side; `lists` are by name and prompt."""
    examples = []
    have_lists = set.intersection(*(set(texts) for texts in lists.values()))
    for prompt in [row for row in distinct_prompts(rows) if row["prompt_id"] in have_lists][:number]:
        key, seen = prompt["prompt_id"], prompt["seen_titles"]
        answers = [truths(row) for row in rows if row["prompt_id"] == key]
        judged = {name: judge_lines(texts[key], answers, seen, catalog, num_ranks) for name, texts in lists.items()}
        examples.append(Example(key, prompt["messages"], answers, judged))
    return examples


def _column(frame: pd.DataFrame, name: str) -> dict[str, str]:
    return dict(zip(frame["prompt_id"], frame[name], strict=True))


def _test_examples(paths: Paths, number: int, catalog: Catalog, num_ranks: int) -> list[Example]:
    frames = {system: pd.read_parquet(paths.predictions / f"{system}.parquet") for system in COMPARED}
    lists = {system: _column(frame, "response") for system, frame in frames.items()}
    return _examples(read_rows(paths.split("test")), lists, number, catalog, num_ranks)


def _demonstration_examples(paths: Paths, number: int, catalog: Catalog, num_ranks: int) -> list[Example]:
    frame = pd.read_parquet(paths.demonstration("validation"))
    lists = {step: _column(frame, column) for step, column in STEP_COLUMNS.items()}
    return _examples(read_rows(paths.split("validation")), lists, number, catalog, num_ranks)


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write the report."""
    catalog, num_ranks = read_catalog(paths.catalog), params.common.list_length
    data = read_json(paths.metrics("data"))
    quarantine = pd.read_parquet(paths.quarantine)
    reasons = Counter(zip(quarantine["source"], quarantine["reason"], strict=True))
    html = render_report(
        profile=params.common.profile,
        seed=params.common.seed,
        simulated=params.data.source == "synthetic",
        cutoffs=params.common.cutoffs,
        bootstrap_samples=params.evaluate.bootstrap_samples,
        catalog_size=data["catalog"],
        files_of_data=_data_files(paths),
        quarantined=[(*reason, number) for reason, number in reasons.most_common()],
        quarantined_share=data["quarantined_share"],
        problems=data["problems"],
        statistics=data["statistics"],
        demonstrations=read_json(paths.metrics("demonstrations")),
        training={stage: read_json(paths.metrics(stage)) for stage in ("sft", "rank_grpo")},
        evaluation=read_json(paths.metrics("evaluate")),
        plots={name: _read_plot(paths.plot(name)) for name in PLOTS},
        examples=_test_examples(paths, params.report.num_examples, catalog, num_ranks),
        demonstration_examples=_demonstration_examples(paths, DEMONSTRATION_EXAMPLES, catalog, num_ranks),
        parameters=flatten(params.model_dump()),
        code=git_state(),
    )
    paths.report.parent.mkdir(parents=True, exist_ok=True)
    paths.report.write_text(html, encoding="utf-8")
    record.log_artifact(paths.report)
