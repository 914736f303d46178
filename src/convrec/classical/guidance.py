"""Guidance: the weights of items in a constrained list, from collaborative evidence."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from convrec.classical.embedding import Embedder, make_embedder
from convrec.classical.evidence import EVIDENCE, Evidence, largest
from convrec.classical.neighbours import Accepted
from convrec.classical.scores import WeightedSum
from convrec.data.catalog import Catalog
from convrec.data.conversations import Row
from convrec.generation.constraint import LARGEST_LOG

_EVIDENCE, _SETTINGS = "evidence.safetensors", "guidance.json"
_CELLS = 4_000_000  # scores in memory at a time


@dataclass(frozen=True)
class Guidance:
    """Evidence and the weight of each of its kinds: log w(item) = sum of weight times score, of the best items.

    All but the `kept` best items of a prompt count as the next one. Without weights there is no guidance.
    """

    evidence: Evidence
    weights: Mapping[str, float]
    embedder: Mapping[str, Any]  # arguments of `make_embedder`

    @classmethod
    def load(
        cls, folder: Path, catalog: Catalog, device: str = "cpu", trust_remote_code: bool = False
    ) -> "Guidance | None":
        """Return the guidance in a folder, for this catalog; None where it holds none, or one without a weight.

        Whether the code of a sentence-transformers model may run is the caller's decision, not the file's.
        """
        if not (folder / _SETTINGS).is_file():
            return None
        settings = json.loads((folder / _SETTINGS).read_text())
        weights, made = settings["weights"], settings["embedder"]
        if not any(weights.values()):
            return None
        embedder = {"name": made["name"], "revision": made.get("revision"), "trust_remote_code": trust_remote_code}
        make: Callable[[], Embedder] = lambda: make_embedder([], **embedder, device=device)  # noqa: E731
        return cls(Evidence.load(folder / _EVIDENCE, catalog, make, device), weights, embedder)

    def __call__(self, prompts: Sequence[Row]) -> list[dict[int, float]]:
        """Return the log weights of prompts, as a `Guide`."""
        return self.log_weights(prompts)

    def with_feedback(self, accepted: Accepted) -> "Guidance":
        """Return the guidance with what people of a service accepted (see `Evidence.with_feedback`)."""
        return replace(self, evidence=self.evidence.with_feedback(accepted))

    def save(self, folder: Path) -> None:
        """Write the guidance to a folder; without weights, nothing that people said or liked."""
        folder.mkdir(parents=True, exist_ok=True)
        if any(self.weights.values()):
            self.evidence.save(folder / _EVIDENCE)
        settings = {"weights": dict(self.weights), "embedder": dict(self.embedder)}
        (folder / _SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")

    def log_weights(
        self, prompts: Sequence[Row], *, without_own: bool = False, earlier: bool = False
    ) -> list[dict[int, float]]:
        """Return the logarithm of the weight of each prompt's items, 0 for those that are left out.

        `without_own` and `earlier` are as in `Evidence.terms`.
        """
        kinds = [kind for kind in EVIDENCE if self.weights.get(kind)]
        if not kinds or not prompts:
            return [{} for _ in prompts]
        terms = self.evidence.terms(prompts, without_own=without_own, earlier=earlier, kinds=kinds)
        total = WeightedSum([terms[kind] for kind in kinds], [self.weights[kind] for kind in kinds])
        return as_log_weights(total, self.evidence.kept)


def load_guide(folder: Path | None, catalog: Catalog, trust_remote_code: bool = False) -> Guidance | None:
    """Return the guidance in a folder as the guide of lists, None where there is none."""
    return None if folder is None else Guidance.load(folder, catalog, trust_remote_code=trust_remote_code)


def as_log_weights(scores: WeightedSum, kept: int) -> list[dict[int, float]]:
    """Return the best items' scores of each prompt, less that of the next one."""
    found: list[dict[int, float]] = []
    for _, block in scores.blocks(max(1, _CELLS // scores.shape[1])):
        rows: sparse.csr_array = largest(block.cpu().numpy().astype(np.float64), kept)
        for start, end in zip(rows.indptr[:-1], rows.indptr[1:], strict=True):
            logs = np.minimum(rows.data[start:end], LARGEST_LOG)
            found.append(dict(zip(rows.indices[start:end].tolist(), logs.tolist(), strict=True)))
    return found
