"""Stage `guidance`: evidence from the training split, with the weights that guide the SFT model's lists best."""

from functools import partial
from typing import Any

from convrec.classical.embedding import make_embedder
from convrec.classical.evidence import EVIDENCE, Evidence
from convrec.classical.guidance import Guidance
from convrec.data.conversations import read_rows
from convrec.evaluation.evaluation import Evaluation
from convrec.evaluation.guidance_fit import fit_guidance
from convrec.generation.lists import check_constraint
from convrec.project.config.params import Params
from convrec.project.device import pick_device
from convrec.project.paths import Paths
from convrec.project.results import write_json
from convrec.registry.tracking import Run, metric_values


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write the evidence and its weights: 0 where they do not gain, without prompts, and if no list is constrained."""
    config, device = params.guidance, pick_device(params.common.device)
    is_used = params.evaluate.constrained or params.rank_grpo.constrained
    options = {**params.evaluation(), "max_prompts": config.fit_prompts if is_used else 0}
    evaluation = Evaluation.of_split(paths, "validation", **options)
    embedder = params.demonstrations.embedder.model_dump()
    make = partial(make_embedder, **embedder, device=device)
    train = read_rows(paths.split("train"))
    evidence = Evidence.fit(train, evaluation.catalog, make, device=device, **params.evidence_options())
    metrics: dict[str, Any] = {"weights": dict.fromkeys(EVIDENCE, 0.0)}
    if evaluation.prompts:
        model, trust = paths.model("sft"), params.base_model.trust_remote_code
        check_constraint(model, evaluation.prompts, evaluation.catalog, params.common.list_length, trust)
        fit = fit_guidance(evidence, model, evaluation)
        metrics = {"weights": fit.weights, f"validation_{evaluation.headline}": fit.ndcg, "unguided": fit.unguided}
    Guidance(evidence, metrics["weights"], embedder).save(paths.guidance)
    write_json(paths.metrics("guidance"), metrics)
    record.log_metrics(metric_values(metrics, "guidance/"))
