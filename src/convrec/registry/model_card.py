"""The tags and the model card of a registered version."""

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from convrec.evaluation.headline import spread, with_interval
from convrec.evaluation.metrics import metric_label
from convrec.evaluation.systems import is_ablation, system_names
from convrec.evaluation.table import read_evaluation
from convrec.project.config.params import Params
from convrec.project.paths import Paths
from convrec.registry.tracking import COMMIT_TAG, data_tags, file_md5, git_state
from convrec.registry.tracking.describe import DIGEST_TAG, read_versions, table_facts, version_tags

MAX_DESCRIPTION = 5000  # characters of a version's description in the registry
CHECKPOINT_TAG, GUIDANCE_TAG = "checkpoint.md5", "guidance.md5"
TEST_TAG = "test."  # followed by the metric; its value is that of the model as it is served
_DIGITS = 8  # of a hash in a tag


def checkpoint_digest(model: Path) -> str:
    """Return the MD5 of the checkpoint's weights, which identifies a registered checkpoint."""
    return " ".join(file_md5(path) for path in sorted(model.glob("*.safetensors")))


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
        commit=git.get(COMMIT_TAG, "unknown"),
        dirty=git.get("git_dirty") == "true",
    )
    return tags, card
