"""Stage `evidence`: what training says about what people will like, and the weights of its kinds.

What is served has the evidence of validation, too: it says nothing in the choice of weights, factor and checkpoint.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from convrec.classical.crossfit import CrossFitted
from convrec.classical.embedding import make_embedder
from convrec.classical.evidence import Evidence
from convrec.classical.guidance import Guidance
from convrec.classical.told import Told
from convrec.data.catalog import Catalog
from convrec.data.conversations import read_rows
from convrec.project.config.params import Params
from convrec.project.device import pick_device
from convrec.project.paths import Paths
from convrec.project.results import write_json
from convrec.registry.tracking import Run, metric_values


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write the evidence with the weights that suit it without a model."""
    embedder, device = params.evidence_embedder(), pick_device(params.common.device)
    train, validation = (read_rows(paths.split(name)) for name in ("train", "validation"))
    make = partial(make_embedder, **embedder, device=device)
    options: dict[str, Any] = {"catalog": Catalog.read(paths.catalog), "embedder": make, "device": device}
    told = Told.of(train, options["catalog"])
    evidence, parts = Evidence.fit(told, **options), CrossFitted.fit(told, **options)
    guide = Guidance.fit(evidence, parts, train, params.common.list_length, embedder)
    guide.save_training(paths.evidence)
    whole = told + Told.of(validation, options["catalog"])
    replace(guide, evidence=Evidence.fit(whole, **options)).save(paths.evidence)
    metrics = {"weights": guide.weights}
    write_json(paths.metrics("evidence"), metrics)
    record.log_metrics(metric_values(metrics, "evidence/"))
