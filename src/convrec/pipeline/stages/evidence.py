"""Stage `evidence`: what training says about what people will like, and the weights of its kinds."""

from functools import partial

from convrec.classical.embedding import make_embedder
from convrec.classical.evidence import Evidence
from convrec.classical.guidance import Guidance
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
    make, sizes = partial(make_embedder, **embedder, device=device), params.evidence.model_dump()
    evidence = Evidence.fit(train, Catalog.read(paths.catalog), make, device=device, **sizes)
    guide = Guidance.fit(evidence, train, validation, params.common.list_length, embedder)
    guide.save(paths.evidence)
    metrics = {"weights": guide.weights}
    write_json(paths.metrics("evidence"), metrics)
    record.log_metrics(metric_values(metrics, "evidence/"))
