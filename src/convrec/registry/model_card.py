"""The tags and the model card of a registered version."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from convrec.evaluation.headline import spread
from convrec.evaluation.metrics import metric_label
from convrec.evaluation.systems import CONSTRAINED, system_names
from convrec.project.config.params import Params
from convrec.project.paths import Paths
from convrec.project.results import read_json
from convrec.registry.tracking import COMMIT_TAG, data_tags, file_md5, git_state
from convrec.registry.tracking.describe import DIGEST_TAG, read_versions, table_facts, version_tags

MAX_DESCRIPTION = 5000  # characters of a version's description in the registry
CHECKPOINT_TAG = "checkpoint.md5"
TEST_TAG = "test."  # followed by the metric; its value is that of the model as it is served
_DIGITS = 8  # of a hash in a tag


@dataclass(frozen=True)
class Facts:
    """The data, parameters, code and scores of a version."""

    stage: str
    checkpoint_md5: str
    params: Params
    metrics: dict[str, Any]  # results/evaluate.json
    data: dict[str, dict[str, Any]]  # md5, rows, dates of each split and of the catalog
    versions_md5: str
    data_versions: dict[str, str]  # tags of the data, as those of runs
    parent: str
    git: dict[str, str]

    @property
    def served(self) -> str:
        """The evaluated system that matches the registered model: the constrained one, if it was evaluated."""
        constrained = self.stage + CONSTRAINED
        return constrained if constrained in self.metrics else self.stage

    def tags(self) -> dict[str, str]:
        """Return the tags of the version, to filter versions by."""
        params, metric = self.params, f"ndcg_at_{max(self.params.common.cutoffs)}"
        return {
            CHECKPOINT_TAG: self.checkpoint_md5,
            "profile": params.common.profile,
            "algorithm": params.rank_grpo.algorithm if self.stage == "rank_grpo" else self.stage,
            "base_model": params.base_model.name,
            "parent": self.parent,
            f"{TEST_TAG}{metric}": _with_interval(self.metrics[self.served], metric),
            **self.data_versions,
        }


def _with_interval(system: Mapping[str, Any], name: str) -> str:
    interval = system["intervals"][name]
    return f"{system[name]:.4f} [{interval['low']:.4f}, {interval['high']:.4f}]"


def checkpoint_digest(model: Path) -> str:
    """Return the MD5 of the checkpoint's weights, which identifies a registered checkpoint."""
    return " ".join(file_md5(path) for path in sorted(model.glob("*.safetensors")))


def _parent(params: Params, paths: Paths, stage: str) -> str:
    """Return the training's starting point: the SFT model with its digest, or the configured name."""
    if stage == "sft":
        return params.base_model.name
    start = params.rank_grpo.start
    return f"sft {checkpoint_digest(paths.model('sft'))[:_DIGITS]}" if start == "sft" else start


def version_facts(params: Params, paths: Paths, stage: str) -> Facts:
    """Return the facts of the checkpoint of a training stage in this workspace."""
    splits = {name: paths.split(name) for name in ("train", "validation", "test") if paths.split(name).is_file()}
    return Facts(
        stage,
        checkpoint_digest(paths.model(stage)),
        params,
        read_json(paths.results("evaluate")),
        {name: table_facts(path) for name, path in {**splits, "catalog": paths.catalog}.items()},
        version_tags(read_versions(paths.root)).get(DIGEST_TAG, ""),
        data_tags(paths),
        _parent(params, paths, stage),
        git_state(),
    )


def _cell(system: Mapping[str, Any], name: str) -> str:
    return f"{system[name]:.3f} {spread(system['intervals'][name])}"


def render_card(facts: Facts) -> str:
    """Return the model card as Markdown."""
    environment = Environment(
        loader=PackageLoader("convrec", "registry"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    widest = max(facts.params.common.cutoffs)
    shown = [f"ndcg_at_{widest}", f"recall_at_{widest}", "in_catalog"]
    rows = [
        (label, name == facts.served, [_cell(facts.metrics[name], metric) for metric in shown])
        for name, label in system_names(facts.metrics).items()
    ]
    return environment.get_template("model_card.md.j2").render(
        facts=facts,
        params=facts.params,
        shown=list(map(metric_label, shown)),
        rows=rows,
        commit=facts.git.get(COMMIT_TAG, "unknown"),
        dirty=facts.git.get("git_dirty") == "true",
    )
