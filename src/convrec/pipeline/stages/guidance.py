"""Stage `guidance`: evidence from the training split, with the weights that guide the SFT model's lists best."""

import logging
from functools import partial
from typing import Any

from convrec.classical.embedding import make_embedder
from convrec.classical.evidence import EVIDENCE, Evidence
from convrec.classical.guidance import Guidance, save_settings
from convrec.data.conversations import read_rows
from convrec.evaluation.evaluation import Evaluation
from convrec.evaluation.guidance_fit import fit_guidance
from convrec.generation.lists import check_constraint
from convrec.project.config.params import Params
from convrec.project.device import pick_device
from convrec.project.paths import Paths
from convrec.project.results import write_json
from convrec.registry.tracking import Run, metric_values

logger = logging.getLogger(__name__)


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write the evidence and its weights; none of both without prompts, and if no list is constrained."""
    config, device = params.guidance, pick_device(params.common.device)
    embedder = params.evidence_embedder()
    metrics: dict[str, Any] = {"weights": dict.fromkeys(EVIDENCE, 0.0)}
    if config.fit_prompts and (params.evaluate.constrained or params.rank_grpo.constrained):
        if embedder["name"] != (chosen := params.demonstrations.embedder.name):
            logger.info("the evidence uses TF-IDF: %s runs code, and a registered version runs none", chosen)
        options = {**params.evaluation(), "max_prompts": config.fit_prompts}
        evaluation = Evaluation.of_split(paths, "validation", **options)
        model, trust = paths.model("sft"), params.base_model.trust_remote_code
        check_constraint(model, evaluation.prompts, evaluation.catalog, params.common.list_length, trust)
        make, train = partial(make_embedder, **embedder, device=device), read_rows(paths.split("train"))
        evidence = Evidence.fit(train, evaluation.catalog, make, device=device, **params.evidence_options())
        fit = fit_guidance(evidence, model, evaluation)
        metrics = {"weights": fit.weights, f"validation_{evaluation.headline}": fit.ndcg, "unguided": fit.unguided}
        Guidance(evidence, fit.weights, embedder).save(paths.guidance)
    else:
        save_settings(paths.guidance, metrics["weights"], embedder)
    write_json(paths.metrics("guidance"), metrics)
    record.log_metrics(metric_values(metrics, "guidance/"))
