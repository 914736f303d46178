"""params.yaml, read once, as frozen models, one for each section. Imports no torch.

profiles/embedded.yaml explains each parameter; the models have its type and bounds.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from convrec.project.config.base import LEAST_PROMPT, Section, Unkeyed, Whole, validated
from convrec.project.config.data import Data
from convrec.project.config.demonstrations import Demonstrations
from convrec.project.config.rank_grpo import RankGRPO
from convrec.project.config.training import SFT, BaseModelStage, GuidanceStage
from convrec.project.yaml import read_yaml


def _instruction(text: str) -> str:
    if re.search(r"[{}]", re.sub(r"\{(?:list_length|items?)\}", "", text)):
        raise ValueError(f"{text!r} has braces beside {{list_length}}, {{item}} and {{items}}; remove them")
    return text


# Text inserted into prompts: one line, and no template.
Words = Annotated[str, Field(min_length=1, pattern=r"^[^{}\r\n]+$")]


class Domain(Section):
    """The words for the recommended items in prompts, the app and the model card."""

    item: Words
    items: Words
    release: Annotated[Words, Unkeyed()]  # of the teacher's prompts, as the next one
    people: Annotated[Words, Unkeyed()]


class Common(Section):
    """Parameters that several stages share."""

    profile: Annotated[str, Unkeyed()]
    seed: int = Field(ge=0, lt=2**31)
    list_length: int = Field(ge=1, le=100)
    # Rank-GRPO's checkpoint is the best at the largest one.
    cutoffs: Annotated[list[Annotated[int, Field(ge=1, le=100)]], Unkeyed("base_model", "sft")] = Field(
        min_length=1, max_length=100
    )
    domain: Domain
    instruction: Annotated[str, AfterValidator(_instruction)] | None
    max_prompt_length: Annotated[int, Unkeyed("base_model")] = Field(ge=LEAST_PROMPT, le=1_000_000)
    max_completion_length: Annotated[int, Unkeyed("base_model")] = Field(ge=8, le=1_000_000)
    repetition_penalty: Annotated[float, Unkeyed("base_model", "sft")] = Field(ge=1, le=10)  # of decoding
    recommend_seen: Annotated[bool, Unkeyed()]  # the rows have what follows from it
    item_tokens: Annotated[bool, Unkeyed("sft", "rank_grpo")]  # the model has them
    device: Annotated[Literal["auto", "cpu", "cuda"], Unkeyed()]

    @property
    def prompt_instruction(self) -> str | None:
        """The instruction with the domain's words, for prompts and registered versions; `{list_length}` stays."""
        text = self.instruction
        return text and text.replace("{item}", self.domain.item).replace("{items}", self.domain.items)

    @model_validator(mode="after")
    def _cutoffs_within_list(self) -> "Common":
        if max(self.cutoffs) > self.list_length:
            raise ValueError(f"cutoffs reach {max(self.cutoffs)}, past list_length = {self.list_length}; lower them")
        return self


class Evaluate(Section):
    """Stage `evaluate`: greedy lists on the test split."""

    engine: Literal["transformers", "vllm"]
    batch_size: Whole = Field(ge=1)
    vllm_tensor_parallel_size: int = Field(ge=1, le=1024)
    vllm_gpu_memory_utilization: Annotated[float, Unkeyed()] = Field(gt=0, lt=1)
    constrained: bool
    max_prompts: Whole | None = Field(ge=1)


class Registry(Section):
    """The project in the model registry; no stage."""

    model: Annotated[str, Field(pattern=r"^[^/:@\s]+$")] | None = None


class Params(Section):
    """The whole of params.yaml."""

    common: Common
    data: Data
    demonstrations: Demonstrations
    base_model: BaseModelStage
    sft: SFT
    guidance: GuidanceStage
    rank_grpo: RankGRPO
    evaluate: Evaluate
    registry: Registry = Registry()

    @property
    def registered_model(self) -> str:
        """The name of the registered model: `registry.model`, by default of the domain, as `convrec-movies`."""
        items = re.sub(r"\W+", "-", self.common.domain.items.lower()).strip("-")
        return self.registry.model or f"convrec-{items}"

    def tags(self) -> dict[str, str]:
        """Return the tags for comparing runs: registered model, profile, algorithm, base model, seed."""
        return {
            "model": self.registered_model,
            "profile": self.common.profile,
            "algorithm": self.rank_grpo.name,
            "base_model": self.base_model.name,
            "seed": str(self.common.seed),
        }

    def source_options(self, name: str) -> dict[str, Any]:
        """Return the options of a source's reader; see `data.sources`."""
        data, common = self.data, self.common
        files = {"catalog": data.catalog, "line_column": data.line_column}
        words = {"domain": (common.domain.item, common.domain.items), "seed": common.seed}
        options: dict[str, dict[str, Any]] = {
            "synthetic": {**data.synthetic.model_dump(), "seed": common.seed, "list_length": common.list_length},
            "redial": {**data.redial.model_dump(), "held_out_share": data.held_out_share},
            "reddit": {"catalog": data.catalog},
            "files": files,
            "interactions": {
                **data.interactions.model_dump(),
                **files,
                **words,
                "split_days": data.split_days(),
                "repeats": common.recommend_seen,
            },
            "amazon": {"catalog": data.catalog, **words},
        }
        return options.get(name, {})

    def list_settings(self) -> dict[str, Any]:
        """Return the arguments of `generation.lists.ListSettings`."""
        shared = {"list_length", "max_prompt_length", "max_completion_length", "repetition_penalty", "recommend_seen"}
        return {
            **self.common.model_dump(include=shared),
            "instruction": self.common.prompt_instruction,
            "items": self.common.domain.items,
        }

    def engine_options(self) -> dict[str, Any]:
        """Return the arguments of `generation.engine.EngineOptions.on_this_machine`."""
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
            "seed": self.common.seed,
        }

    def evidence_embedder(self) -> dict[str, Any]:
        """Return the arguments of `make_embedder` for the evidence: the demonstrations' embedder if it runs no code.

        Evidence is registered with the model, and a registered version runs no code; TF-IDF then takes its place.
        """
        chosen = self.demonstrations.embedder
        return {"name": "tfidf"} if chosen.trust_remote_code else {"name": chosen.name, "revision": chosen.revision}

    def baseline_options(self) -> dict[str, Any]:
        """Return the arguments of `evaluation.baselines.Options.of`."""
        return {
            "size": self.common.list_length,
            "cutoffs": self.common.cutoffs,
            "embedder": self.demonstrations.embedder.model_dump(),
            "device": self.common.device,
            "seed": self.common.seed,
            "ordered": self.data.is_ordered,
        }

    @model_validator(mode="after")
    def _lists_in_one_pass_are_constrained(self) -> "Params":
        for name, section in (("evaluate", self.evaluate), ("rank_grpo", self.rank_grpo)):
            if self.common.item_tokens and not section.constrained:
                raise ValueError(
                    f"{name}.constrained = false: free lists are titles as text; set common.item_tokens to false"
                )
        return self

    @model_validator(mode="after")
    def _sft_holds_a_prompt(self) -> "Params":
        needed = LEAST_PROMPT + self.common.list_length + 1  # a line is a token or more
        if self.sft.max_length < needed:
            raise ValueError(f"sft.max_length = {self.sft.max_length} has no room for a list; give {needed} or more")
        return self


def parse_params(raw: dict[str, Any], source: str) -> Params:
    """Return the validated parameters; raises `InputError` with one line for each mistake (see `validated`)."""
    return validated(Params, raw, source, "profiles/embedded.yaml")


def load_params(path: Path = Path("params.yaml")) -> Params:
    """Return the validated parameters of a params.yaml."""
    return parse_params(read_yaml(path), str(path))
