"""The tags and the model card of a registered version."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from convrec.config.params import Params
from convrec.evaluation.systems import CONSTRAINED, system_names
from convrec.files.results import read_json
from convrec.paths import Paths
from convrec.tracking import COMMIT_TAG, file_md5, git_state
from convrec.tracking.versions import digest, read_versions

MAX_DESCRIPTION = 5000  # characters of a version's description in the registry
CHECKPOINT_TAG = "checkpoint.md5"
DECISIONS = "## Decisions"  # the last heading of a card, followed by one line for each decision, newest last
SPLITS = ("train", "validation", "test")
_TAGGED = ("ndcg", "recall", "in_catalog", "coverage")
_SHOWN = ("in_catalog",)  # in addition to NDCG and recall at the largest cutoff


@dataclass(frozen=True)
class Facts:
    """The data, parameters, code and scores of a version."""

    stage: str
    checkpoint_md5: str
    params: Params
    metrics: dict[str, Any]  # results/evaluate.json
    data: dict[str, dict[str, Any]]  # md5, rows, dates of each split and of the catalog
    versions_md5: str
    parent: dict[str, str]
    git: dict[str, str]

    @property
    def served(self) -> str:
        """The evaluated system that matches the registered model: the constrained one, if it was evaluated."""
        constrained = self.stage + CONSTRAINED
        return constrained if constrained in self.metrics else self.stage

    def tags(self) -> dict[str, str]:
        """Return the tags of the version, each below 5,000 characters."""
        common = self.params.common
        main = {
            "profile": common.profile,
            "seed": common.seed,
            "base_model": self.params.base_model.name,
            "algorithm": self.params.rank_grpo.algorithm if self.stage == "rank_grpo" else self.stage,
            "source": self.params.data.source,
        }
        means = {k: v for k, v in self.metrics[self.served].items() if isinstance(v, float)}
        tags = {
            CHECKPOINT_TAG: self.checkpoint_md5,
            "stage": self.stage,
            **{f"{name}.md5": found["md5"] for name, found in self.data.items()},
            "versions.md5": self.versions_md5,
            "n_rows": self.metrics["n_rows"],
            "n_prompts": self.metrics["n_prompts"],
            "served_as": self.served,
            **{
                f"test.{k}": f"{v:.6g}"
                for k, v in means.items()
                if k.startswith(("ndcg", "recall", "in_cat", "coverage"))
            },
            **{f"metrics.{name}": _intervals(self.metrics[name]) for name in self._systems()},
            **{f"parent.{key}": value for key, value in self.parent.items()},
            **{f"param.{key}": value for key, value in main.items()},
            **self.git,
        }
        return {key: str(value) for key, value in tags.items()}

    def _systems(self) -> list[str]:
        return [name for name in (self.stage, self.stage + CONSTRAINED) if name in self.metrics]


def _intervals(system: Mapping[str, Any]) -> str:
    """Return mean, low and high of every metric of a system as JSON."""
    rounded = {name: [round(system[name], 6), i["low"], i["high"]] for name, i in system["intervals"].items()}
    return json.dumps(rounded)


def checkpoint_digest(model: Path) -> str:
    """Return the MD5 of the checkpoint's weights, which identifies a registered checkpoint."""
    return " ".join(file_md5(path) for path in sorted(model.glob("*.safetensors")))


def _table_facts(path: Path) -> dict[str, Any]:
    frame = pd.read_parquet(path)
    dates = frame["date"].astype(str) if "date" in frame else pd.Series(dtype=str)
    dates = dates[dates.str.len() > 0]
    window = f"{dates.min()[:10]} to {dates.max()[:10]}" if len(dates) else ""
    return {"md5": file_md5(path), "rows": len(frame), "dates": window}


def _parent(params: Params, paths: Paths, stage: str) -> dict[str, str]:
    """Return the training's starting point: the SFT model's digest and run, or the configured name."""
    if stage == "sft":
        return {"base_model": params.base_model.name}
    if params.rank_grpo.start != "sft":
        return {"start": params.rank_grpo.start}
    parent = {"start": "sft", "sft.md5": checkpoint_digest(paths.model("sft"))}
    run = paths.run_id("sft")
    return parent | ({"sft.run_id": read_json(run)["run_id"]} if run.is_file() else {})


def version_facts(params: Params, paths: Paths, stage: str) -> Facts:
    """Return the facts of the checkpoint of a training stage in this workspace."""
    splits = {name: paths.split(name) for name in SPLITS if paths.split(name).is_file()}
    return Facts(
        stage,
        checkpoint_digest(paths.model(stage)),
        params,
        read_json(paths.results("evaluate")),
        {name: _table_facts(path) for name, path in {**splits, "catalog": paths.catalog}.items()},
        digest(read_versions(paths.root)),
        _parent(params, paths, stage),
        git_state(),
    )


def _cell(system: Mapping[str, Any], name: str) -> str:
    interval = system["intervals"].get(name)
    spread = f" [{interval['low']:.4f}, {interval['high']:.4f}]" if interval else ""
    return f"{system[name]:.4f}{spread}"


def render_card(facts: Facts) -> str:
    """Return the model card as Markdown; its last section, the decisions, is empty."""
    environment = Environment(
        loader=PackageLoader("convrec", "registry"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    widest = max(facts.params.common.cutoffs)
    shown = [name for name in (f"ndcg_at_{widest}", f"recall_at_{widest}", *_SHOWN)]
    rows = [
        (label, name == facts.served, [_cell(facts.metrics[name], metric) for metric in shown])
        for name, label in system_names(facts.metrics).items()
    ]
    return environment.get_template("model_card.md.j2").render(
        facts=facts, params=facts.params, shown=shown, rows=rows, commit=facts.git.get(COMMIT_TAG, "unknown"),
        dirty=facts.git.get("git_dirty") == "true", decisions=DECISIONS,
    )  # fmt: skip


def with_decision(card: str, line: str) -> str:
    """Return the card with one more decision; the oldest decisions are dropped if the card gets too long."""
    head, _, decisions = card.partition(DECISIONS)
    lines = [*(old for old in decisions.splitlines() if old.startswith("- ")), f"- {line}"]
    while len(lines) > 1 and len(head) + len(DECISIONS) + sum(map(len, lines)) + len(lines) + 3 > MAX_DESCRIPTION:
        del lines[0]
    return "\n".join([f"{head}{DECISIONS}", "", *lines, ""])[:MAX_DESCRIPTION]
