"""Stage `guidance`: evidence from the training split, with the weights that guide the SFT model's lists best."""

from functools import partial

from convrec.classical.embedding import make_embedder
from convrec.classical.evidence import EVIDENCE, Evidence
from convrec.classical.guidance import Guidance
from convrec.data.conversations import read_rows
from convrec.evaluation.evaluation import Evaluation
from convrec.evaluation.guidance_fit import GuidanceFit, fit_guidance
from convrec.project.config.params import Params
from convrec.project.device import pick_device
from convrec.project.paths import Paths
from convrec.project.results import write_json
from convrec.registry.tracking import Run, metric_values


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write the evidence and its weights; without prompts to fit them on, or without a gain, all weights are 0."""
    config, device = params.guidance, pick_device(params.common.device)
    options = {**params.evaluation(), "max_prompts": config.fit_prompts}
    evaluation = Evaluation.of_split(paths, "validation", **options)
    embedder = params.demonstrations.embedder.model_dump()
    make = partial(make_embedder, **embedder, device=device)
    train = read_rows(paths.split("train"))
    evidence = Evidence.fit(train, evaluation.catalog, make, device=device, **params.evidence_options())
    fit = GuidanceFit(dict.fromkeys(EVIDENCE, 0.0), 0.0, 0.0)
    if evaluation.prompts:
        fit = fit_guidance(evidence, paths.model("sft"), evaluation)
    Guidance(evidence, fit.weights, embedder).save(paths.guidance)
    metrics = {"weights": fit.weights, f"validation_{evaluation.headline}": fit.ndcg, "unguided": fit.unguided}
    write_json(paths.metrics("guidance"), metrics)
    record.log_metrics(metric_values(metrics, "guidance/"))
