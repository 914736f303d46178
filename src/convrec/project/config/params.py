"""params.yaml, read once, as frozen models: one section, one model, one stage. Imports no torch."""

import difflib
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError, model_validator

from convrec.project.config.base import LEAST_PROMPT, Section
from convrec.project.config.common import Common
from convrec.project.config.data import Data
from convrec.project.config.demonstrations import Demonstrations
from convrec.project.config.evaluate import Evaluate, Report
from convrec.project.config.rank_grpo import RankGRPO
from convrec.project.config.training import SFT, BaseModelStage
from convrec.project.errors import InputError
from convrec.project.yaml import read_yaml

RENAMED = {"validation_month": "validation_period", "test_month": "test_period"}


class Params(Section):
    """The whole of params.yaml."""

    common: Common
    data: Data
    demonstrations: Demonstrations
    base_model: BaseModelStage
    sft: SFT
    rank_grpo: RankGRPO
    evaluate: Evaluate
    report: Report

    def tags(self) -> dict[str, str]:
        """Return the tags for comparing runs: profile, algorithm, base model, seed."""
        return {
            "profile": self.common.profile,
            "algorithm": self.rank_grpo.name,
            "base_model": self.base_model.name,
            "seed": str(self.common.seed),
        }

    def source_options(self, name: str) -> dict[str, Any]:
        """Return the options of a source's reader; see `data.sources`."""
        data, seed = self.data, self.common.seed
        if name == "synthetic":
            return {**data.synthetic.model_dump(), "seed": seed, "list_length": self.common.list_length}
        if name == "reddit":
            return {"catalog": data.catalog}
        if name == "reddit_movie":
            return {"min_upvotes": data.min_upvotes}
        if name == "files":
            return {"catalog": data.catalog, "line_column": data.line_column}
        if name == "interactions":
            return {
                **data.interactions.model_dump(),
                "catalog": data.catalog,
                "line_column": data.line_column,
                "split_days": data.split_days(),
                "domain": (self.common.domain.item, self.common.domain.items),
                "seed": seed,
                "repeats": self.common.recommend_seen,
            }
        return {}

    def list_settings(self) -> dict[str, Any]:
        """Return the arguments of `generation.lists.ListSettings`."""
        return {
            "instruction": self.common.prompt_instruction,
            "list_length": self.common.list_length,
            "max_completion_length": self.evaluate.max_completion_length,
            "repetition_penalty": self.common.repetition_penalty,
            "max_prompt_length": self.common.max_prompt_length,
            "items": self.common.domain.items,
            "recommend_seen": self.common.recommend_seen,
        }

    def engine_options(self) -> dict[str, Any]:
        """Return the arguments of `generation.lists.EngineOptions.on_this_machine`."""
        return {
            "engine": self.evaluate.engine,
            "device": self.common.device,
            "batch_size": self.evaluate.batch_size,
            "tensor_parallel_size": self.evaluate.vllm_tensor_parallel_size,
            "gpu_memory_utilization": self.evaluate.vllm_gpu_memory_utilization,
            "trust_remote_code": self.base_model.trust_remote_code,
        }

    def evaluation(self) -> dict[str, Any]:
        """Return the arguments of `evaluation.Evaluation.of_split`, beside the paths and the split."""
        return {
            "max_prompts": self.evaluate.max_prompts,
            "settings": self.list_settings(),
            "engine": self.engine_options(),
            "cutoffs": self.common.cutoffs,
            "samples": self.evaluate.bootstrap_samples,
            "seed": self.common.seed,
        }

    def baseline_options(self) -> dict[str, Any]:
        """Return the arguments of `evaluation.baselines.Options.of`."""
        common = self.common
        embedder = self.demonstrations.embedder.model_dump()
        return {
            "size": common.list_length,
            "cutoffs": common.cutoffs,
            "embedder": embedder,
            "device": common.device,
            "seed": common.seed,
        }

    @model_validator(mode="after")
    def _ground_truth_is_learned(self) -> "Params":
        if self.demonstrations.ground_truth_first and self.sft.lists != "adjust":
            raise ValueError(
                "demonstrations.ground_truth_first = true puts the ground truth into the lists of adjust, but "
                f"sft.lists = {self.sft.lists}; set sft.lists to adjust"
            )
        return self

    @model_validator(mode="after")
    def _sft_holds_a_prompt(self) -> "Params":
        needed = LEAST_PROMPT + 2 * self.common.list_length  # a line is two tokens or more
        if self.sft.max_length < needed:
            raise ValueError(
                f"sft.max_length = {self.sft.max_length} has no room for a prompt ({LEAST_PROMPT} tokens or more) and "
                f"a list of common.list_length = {self.common.list_length} lines; set it to {needed} or more"
            )
        return self


def _known_fields(location: tuple[int | str, ...]) -> list[str]:
    """Return the field names of the section that holds `location`."""
    model: Any = Params
    for part in location[:-1]:
        annotation = model.model_fields[part].annotation  # a section, or one that may be null
        model = next(kind for kind in (*get_args(annotation), annotation) if hasattr(kind, "model_fields"))
    return list(model.model_fields)


def _explain(error: dict[str, Any]) -> str:
    location = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden" and error["loc"][-1] in RENAMED:
        return f"{location}: this parameter is now {RENAMED[error['loc'][-1]]!r}; rename it"
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(str(error["loc"][-1]), _known_fields(error["loc"]), n=1, cutoff=0.75)
        hint = f"did you mean {close[0]!r}?" if close else "remove it; CHANGELOG.md lists renamed parameters"
        return f"{location}: unknown parameter; {hint}"
    if error["type"] == "missing":
        return f"{location}: missing; add it (profiles/embedded.yaml shows every parameter)"
    if error["type"] == "value_error":  # one of several sections has no location, and names its fields itself
        return f"{location}: {error['ctx']['error']}" if location else str(error["ctx"]["error"])
    return f"{location} = {error['input']!r}: {error['msg'][0].lower()}{error['msg'][1:]}"


def parse_params(raw: dict[str, Any], source: str) -> Params:
    """Return the validated parameters.

    Raises `InputError` with one line for each mistake: field, value, and what is wanted.
    """
    try:
        return Params.model_validate(raw)
    except ValidationError as error:
        lines = [_explain(dict(mistake)) for mistake in error.errors()]
        raise InputError("\n".join(f"{source}: {line}" for line in lines)) from None


def load_params(path: Path = Path("params.yaml")) -> Params:
    """Return the validated parameters of a params.yaml."""
    return parse_params(read_yaml(path), str(path))
