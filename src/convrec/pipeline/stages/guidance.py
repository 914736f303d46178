"""Stage `guidance`: how much the evidence says in the SFT model's lists."""

import shutil
from typing import Any

from convrec.classical.guidance import Guidance
from convrec.data.catalog import Catalog
from convrec.evaluation.evaluation import Evaluation
from convrec.evaluation.guidance_fit import fit_guidance
from convrec.generation.lists import check_constraint
from convrec.project.config.params import Params
from convrec.project.paths import Paths
from convrec.project.results import write_json
from convrec.registry.tracking import Run, metric_values


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write the evidence with its weights beside the model: none without prompts, and if no list is constrained."""
    prompts, guide = params.guidance.fit_prompts, Guidance.load(paths.evidence, Catalog.read(paths.catalog))
    metrics: dict[str, Any] = {"factor": 0.0}
    if guide and prompts and (params.evaluate.constrained or params.rank_grpo.constrained):
        evaluation = Evaluation.of_split(paths, "validation", **{**params.evaluation(), "max_prompts": prompts})
        model, trust = paths.model("sft"), params.base_model.trust_remote_code
        check_constraint(model, evaluation.prompts, evaluation.catalog, params.common.list_length, trust)
        fitted = Guidance.load(paths.evidence, evaluation.catalog, training=paths.evidence)
        fit = fit_guidance(fitted or guide, model, evaluation)
        metrics = {"factor": fit.factor, f"validation_{evaluation.headline}": fit.ndcg, "unguided": fit.unguided}
    if guide:
        guide.times(metrics["factor"]).save(paths.guidance)
    else:  # no kind of evidence has a weight
        shutil.copytree(paths.evidence, paths.guidance, dirs_exist_ok=True)
    write_json(paths.metrics("guidance"), metrics)
    record.log_metrics(metric_values(metrics, "guidance/"))
