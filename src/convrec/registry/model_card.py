"""The tags and the model card of a registered version."""

from pathlib import Path
from textwrap import shorten

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from convrec.evaluation.headline import excludes_zero, spread, with_interval
from convrec.evaluation.metrics import metric_label
from convrec.evaluation.slices import KINDS
from convrec.evaluation.systems import is_ablation, system_names
from convrec.evaluation.table import read_evaluation
from convrec.project.config.params import Params
from convrec.project.paths import Paths
from convrec.project.text import markdown
from convrec.registry.tracking import COMMIT_TAG, data_tags, file_md5, git_state
from convrec.registry.tracking.describe import DIGEST_TAG, read_versions, table_facts, version_tags

MAX_DESCRIPTION = 5000  # characters of a version's description in the registry
CHECKPOINT_TAG, GUIDANCE_TAG = "checkpoint.md5", "guidance.md5"
TEST_TAG = "test."  # followed by the metric; its value is that of the model as it is served
TRAINING_TAG = "rank_grpo.verdict"  # what it changed
_CHANGED = {1: "improved on SFT", 0: "changed nothing that the test shows", -1: "made the lists worse than SFT's"}
_DECISION = "**Last decision.** "
_DIGITS = 8  # of a hash in a tag


def checkpoint_digest(model: Path) -> str:
    """Return the MD5 of the checkpoint's weights, which identifies a registered checkpoint."""
    return " ".join(file_md5(path) for path in sorted(model.glob("*.safetensors")))


def with_verdict(card: str, verdict: str) -> str:
    """Return a model card with the verdict of a decision below its title, in place of that of the decision before."""
    title, *parts = [part for part in card.split("\n\n") if not part.startswith(_DECISION)] or [""]
    return "\n\n".join([title, f"{_DECISION}{markdown(verdict)}", *parts]).strip()[:MAX_DESCRIPTION]


def _samples(paths: Paths, stage: str) -> list[tuple[str, str]]:
    """Return the last message of the first test prompts, shortened, and the first items of the list for each."""
    file = paths.predictions / f"{stage}.parquet"
    if not file.is_file():
        return []
    lists = pd.read_parquet(file).set_index("prompt_id")["response"]
    rows = pd.read_parquet(paths.split("test")).drop_duplicates("prompt_id")[:3]
    asked = [shorten(messages[-1]["content"], 160, placeholder=" …") for messages in rows["messages"]]
    found = ["; ".join(lists[prompt].split("\n")[:3]) for prompt in rows["prompt_id"]]
    return list(zip(map(markdown, asked), map(markdown, found), strict=True))


def describe_version(params: Params, paths: Paths, stage: str, model_name: str) -> tuple[dict[str, str], str]:
    """Return the tags of the checkpoint of a training stage, to filter versions by, and its model card as Markdown."""
    metrics, git, widest = read_evaluation(paths), git_state(), max(params.common.cutoffs)
    headline = f"ndcg_at_{widest}"
    parent = params.base_model.name if stage == "sft" else params.rank_grpo.start
    if parent == "sft":
        parent = f"sft {checkpoint_digest(paths.model('sft'))[:_DIGITS]}"
    score = {"mean": metrics[stage][headline], **metrics[stage]["intervals"][headline]}
    tags = {
        CHECKPOINT_TAG: checkpoint_digest(paths.model(stage)),
        GUIDANCE_TAG: " ".join(file_md5(path) for path in sorted(paths.guidance.glob("*"))),
        "profile": params.common.profile,
        "algorithm": params.rank_grpo.algorithm if stage == "rank_grpo" else stage,
        "base_model": params.base_model.name,
        "parent": parent,
        f"{TEST_TAG}{headline}": with_interval(score),
        **data_tags(paths),
    }
    if stage == "rank_grpo" and (gain := metrics.get(f"paired_{headline}", {}).get("rank_grpo_over_sft")):
        tags[TRAINING_TAG] = f"Rank-GRPO {_CHANGED[excludes_zero(gain)]}."
    files = {name: paths.split(name) for name in ("train", "validation", "test")} | {"catalog": paths.catalog}
    shown = (headline, f"recall_at_{widest}", "in_catalog")
    rows = [
        (
            label,
            name == stage,
            [f"{metric_label(m)} {metrics[name][m]:.3f} {spread(metrics[name]['intervals'][m])}" for m in shown],
        )
        for name, label in system_names(metrics).items()
        if not is_ablation(name)
    ]
    environment = Environment(
        loader=PackageLoader("convrec", "registry"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    card = environment.get_template("model_card.md.j2").render(
        params=params,
        model_name=model_name,
        stage=stage,
        metrics=metrics,
        parent=parent,
        data={name: table_facts(path) for name, path in files.items() if path.is_file()},
        versions_md5=version_tags(read_versions(paths.root)).get(DIGEST_TAG, ""),
        rows=rows,
        samples=[] if "feedback" in params.data.source else _samples(paths, stage),  # users' texts stay here
        headline=headline,
        metric_label=metric_label,
        kinds=KINDS,
        commit=git.get(COMMIT_TAG, "unknown"),
        dirty=git.get("git_dirty") == "true",
    )
    return tags, card
