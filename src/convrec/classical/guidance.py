"""Guidance: the weights of items in a constrained list, from evidence."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from convrec.classical.embedding import make_embedder
from convrec.classical.evidence import EVIDENCE, Evidence, largest
from convrec.classical.neighbours import Accepted
from convrec.classical.scores import WeightedSum
from convrec.data.catalog import Catalog
from convrec.data.conversations import Row
from convrec.generation.trie import LARGEST_LOG, NO_GUIDANCE, LogWeights

_EVIDENCE, _SETTINGS = "evidence.safetensors", "guidance.json"


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
        make = partial(make_embedder, [], **embedder, device=device)
        return cls(Evidence.load(folder / _EVIDENCE, catalog, make, device), weights, embedder)

    def __call__(self, prompts: Sequence[Row]) -> list[LogWeights]:
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

    def log_weights(self, prompts: Sequence[Row], *, without_own: bool = False) -> list[LogWeights]:
        """Return the logarithm of the weight of each prompt's items; `without_own` is as in `Evidence.terms`."""
        kinds = [kind for kind in EVIDENCE if self.weights.get(kind)]
        if not kinds or not prompts:
            return [NO_GUIDANCE] * len(prompts)
        terms = self.evidence.terms(prompts, without_own=without_own, earlier=False, kinds=kinds)
        total = WeightedSum([terms[kind] for kind in kinds], [self.weights[kind] for kind in kinds])
        return as_log_weights(total, self.evidence.kept)

    def likers(self, prompts: Sequence[Row]) -> list[dict[int, int]]:
        """Return `Neighbours.likers` of the conversations that vote; none if their votes guide no list."""
        if not self.weights.get("neighbours"):
            return [{} for _ in prompts]
        return self.evidence.voters.likers(prompts, self.evidence.number)


def load_guide(folder: Path | None, catalog: Catalog, trust_remote_code: bool = False) -> Guidance | None:
    """Return the guidance in a folder as the guide of lists, None where there is none."""
    return None if folder is None else Guidance.load(folder, catalog, trust_remote_code=trust_remote_code)


def as_log_weights(scores: WeightedSum, kept: int) -> list[LogWeights]:
    """Return the best items' scores of each prompt, less that of the next one.

    Where the best is more than `LARGEST_LOG`, all are lowered in proportion, so that their order stays.
    """
    found: list[LogWeights] = []
    for _, block in scores.blocks():
        rows = largest(block.cpu().numpy().astype(np.float64), kept)
        for start, end in zip(rows.indptr[:-1], rows.indptr[1:], strict=True):
            logs = rows.data[start:end]
            if (best := logs.max(initial=0)) > LARGEST_LOG:
                logs = np.minimum(logs * (LARGEST_LOG / best), LARGEST_LOG)
            found.append(LogWeights(rows.indices[start:end], logs))
    return found
