"""Stage `report`: the results of the other stages on one page."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from convrec.data.catalog import Catalog
from convrec.data.conversations import (
    SPLITS,
    STEP_COLUMNS,
    Row,
    distinct_prompts,
    person_of,
    read_prompts,
    read_rows,
    truths,
)
from convrec.evaluation.comparison import hits_by_rank, rank_intervals
from convrec.evaluation.examples import Example, judge_lines, worst_rows
from convrec.evaluation.figures import PLOTS
from convrec.evaluation.metrics import ndcg
from convrec.evaluation.report import COMPARED, DataFile, render_report
from convrec.evaluation.table import read_evaluation
from convrec.project.atomic import write_text
from convrec.project.config.params import Params
from convrec.project.paths import Path, Paths
from convrec.project.results import read_json
from convrec.registry.tracking import Run, file_md5, flatten, git_state

EXAMPLES = 6  # first test prompts shown with their lists
FAILURES = 6  # worst test rows of Rank-GRPO, shown with their lists
DEMONSTRATION_EXAMPLES = 2  # validation prompts whose lists are shown after each step


def _read_plot(path: Path) -> pd.DataFrame:
    """Return a curve; an empty table where a run was too short to log a point."""
    return pd.read_csv(path) if path.read_text().strip() else pd.DataFrame()


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
    rows: Sequence[Row], lists: dict[str, dict[str, str]], number: int, catalog: Catalog, num_ranks: int
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


def _failures(
    rows: list[Row], lists: dict[str, dict[str, str]], hits: dict[str, np.ndarray], catalog: Catalog
) -> tuple[list[Example], tuple[int, int]]:
    """Return the rows of Rank-GRPO with the lowest NDCG, those of one NDCG by what SFT's lists were better.

    Also returns the number of rows without a hit, and of all rows.
    """
    num_ranks, num_truths = hits["rank_grpo"].shape[1], np.array([len(row["groundtruth"]) for row in rows])
    scores = {system: ndcg(hits[system], num_truths, num_ranks) for system in COMPARED}
    examples = []
    for place in worst_rows(scores["rank_grpo"], scores["sft"], [row["prompt_id"] for row in rows], FAILURES):
        row, accepted = rows[place], truths(rows[place])
        judged = {
            name: judge_lines(texts[row["prompt_id"]], [accepted], row["seen_titles"], catalog, num_ranks)
            for name, texts in lists.items()
        }
        worth = {system: float(values[place]) for system, values in scores.items()}
        examples.append(Example(row["prompt_id"], row["messages"], [accepted], judged, worth))
    return examples, (int((hits["rank_grpo"].sum(axis=1) == 0).sum()), len(rows))


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write the report."""
    catalog, num_ranks = Catalog.read(paths.catalog), params.common.list_length
    data, evaluation = read_json(paths.results("data")), read_evaluation(paths)
    quarantine = pd.read_parquet(paths.quarantine)
    rows, _ = read_prompts(paths.split("test"), params.evaluate.max_prompts)
    validated = read_prompts(paths.split("validation"), params.sft.validation_prompts)
    lists = {
        system: _column(pd.read_parquet(paths.predictions / f"{system}.parquet"), "response") for system in COMPARED
    }
    hits = {system: hits_by_rank(texts, rows, catalog, num_ranks) for system, texts in lists.items()}
    persons = [person_of(row) for row in rows]
    reasons = Counter(zip(quarantine["source"], quarantine["reason"], strict=True))
    demonstrated = pd.read_parquet(paths.demonstration("validation"))
    steps = {step: _column(demonstrated, column) for step, column in STEP_COLUMNS.items()}
    shown = _examples(read_rows(paths.split("validation")), steps, DEMONSTRATION_EXAMPLES, catalog, num_ranks)
    failures, without_hit = _failures(rows, lists, hits, catalog)
    page = render_report(
        parameters=flatten(params.model_dump()),
        code=git_state(),
        data=data,
        data_files=_data_files(paths),
        quarantined=[(*reason, number) for reason, number in reasons.most_common()],
        demonstrations=read_json(paths.results("demonstrations")),
        training={stage: read_json(paths.metrics(stage)) for stage in ("sft", "rank_grpo")},
        evaluation=evaluation,
        plots={name: _read_plot(paths.plot(name)) for name in PLOTS},
        ranks={system: rank_intervals(values, persons, params.common.seed) for system, values in hits.items()},
        validated=(len(validated[0]), len(validated[1])),
        examples=_examples(rows, lists, EXAMPLES, catalog, num_ranks),
        failures=failures,
        without_hit=without_hit,
        demonstration_examples=shown,
    )
    write_text(paths.report, page)
    record.log_artifact(paths.report)
