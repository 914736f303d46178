"""params.yaml, read once, as frozen models: one section, one model, one stage. Imports no torch."""

import difflib
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from convrec.errors import InputError
from convrec.files.yaml import read_yaml
from convrec.paths import is_below

LARGEST = 10**9  # of whole numbers whose size costs time alone, not memory
Whole = Annotated[int, Field(le=LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Month = Annotated[str, Field(pattern=r"^\d{4}-(0[1-9]|1[0-2])$")]


def _file_below(name: str) -> str:
    if not is_below(name):
        raise ValueError(f"{name!r} leads out of its folder; name a file there, without '..'")
    return name


def _without_secrets(url: str) -> str:
    place, _, query = url.partition("?")
    if query or "@" in place.split("//", 1)[-1].split("/", 1)[0]:
        raise ValueError("holds a user, a password or a query, which would be recorded; keys belong in the environment")
    return url


FileBelow = Annotated[str, AfterValidator(_file_below)]
Url = Annotated[str, AfterValidator(_without_secrets)]

LEAST_PROMPT = 64  # tokens: below, chat template and instruction leave nothing for the conversation


class Section(BaseModel):
    """A section of params.yaml: no unknown keys, no silent conversions, no inf or NaN, no later changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


def _instruction(text: str) -> str:
    if re.search(r"[{}]", re.sub(r"\{(?:list_length|items?)\}", "", text)):
        raise ValueError(f"{text!r} has braces beside {{list_length}}, {{item}} and {{items}}; remove them")
    return text


# What stands in prompts without being a template itself, and in one line.
Words = Annotated[str, Field(min_length=1, pattern=r"^[^{}\r\n]+$")]


class Domain(Section):
    """What is recommended, in the words of the prompts, the app and the model card."""

    item: Words = Field(description="one item: movie, book, board game")
    items: Words = Field(description="several of them")
    release: Words = Field(description="how an item comes out, as in 'original release title and year': publication")
    people: Words = Field(description="who makes an item, as the teacher is asked to name them: the author")

    def fill(self, instruction: str | None) -> str | None:
        """Return an instruction with `{item}` and `{items}` replaced; `{list_length}` stays."""
        return instruction and instruction.replace("{item}", self.item).replace("{items}", self.items)


class Common(Section):
    """What several stages share."""

    profile: str = Field(description="the profile that these parameters came from; only a label")
    seed: int = Field(ge=0, lt=2**31)
    list_length: int = Field(ge=1, le=100, description="N, the ranks of a list")
    cutoffs: list[Annotated[int, Field(ge=1, le=100)]] = Field(
        min_length=1, max_length=100, description="K of Recall@K and NDCG@K"
    )
    domain: Domain
    instruction: Annotated[str, AfterValidator(_instruction)] | None = Field(
        description="the prompt's first line, {list_length}, {item} and {items} replaced (see `prompt_instruction`); "
        "none where the source's messages hold it"
    )
    max_prompt_length: int = Field(
        ge=LEAST_PROMPT,
        le=1_000_000,
        description="tokens of a prompt, its chat template included; beyond, the oldest turns go",
    )
    repetition_penalty: float = Field(
        ge=1, le=10, description="of decoding, in rollouts too: what the text holds already scores lower; 1 is none"
    )
    recommend_seen: bool = Field(
        description="what a conversation names, but not as disliked, may be recommended and is then counted"
    )
    device: Literal["auto", "cpu", "cuda"]

    @property
    def prompt_instruction(self) -> str | None:
        """The instruction in the domain's words, as prompts and registered versions hold it; `{list_length}` stays."""
        return self.domain.fill(self.instruction)

    def prompt_parameters(self) -> dict[str, Any]:
        """Return the seed and what decides the prompts: trainings that differ in these share no checkpoints."""
        shared = self.model_dump(include={"seed", "list_length", "max_prompt_length"})
        return {**shared, "instruction": self.prompt_instruction}

    @model_validator(mode="after")
    def _cutoffs_within_list(self) -> "Common":
        if max(self.cutoffs) > self.list_length:
            raise ValueError(f"cutoffs reach {max(self.cutoffs)}, past list_length = {self.list_length}; lower them")
        return self


class Synthetic(Section):
    """The embedded world's size and period."""

    num_conversations: int = Field(ge=30, le=1_000_000)
    first_month: Month
    num_months: int = Field(ge=3, le=120)


Policy = Literal["keep", "drop"]


class Checks(Section):
    """What becomes of rows that have a problem: each is counted, and what is dropped goes to the quarantine."""

    outside_catalog: Policy = Field(description="ground truth that the catalog does not hold, so that no list can hit")
    seen_truth: Policy = Field(description="ground truth that the conversation has named, so that no list can hit")
    duplicate_rows: Policy = Field(description="rows that equal an earlier one in every column")
    leaks: Policy = Field(description="training rows whose conversation, or nearly its text, is held out")
    similarity: Share = Field(ge=0.5, description="of texts that are nearly the same: Jaccard index of their 5-grams")


class Columns(Section):
    """The names of a log's columns; none for those of MovieLens, of the Amazon reviews, and other common ones."""

    user: str | None
    item: str | None
    value: str | None = Field(description="ratings or events; a log without such a column is one of liked items")
    time: str | None


class Interactions(Section):
    """Source `interactions`: what of a log becomes conversations."""

    log: FileBelow | None = Field(description="name of the log's file in data.path; none where it has a known name")
    columns: Columns
    liked: float | Annotated[list[str], Field(min_length=1)] = Field(
        description="an item is liked from this rating on, or by one of these events"
    )
    disliked: float | list[str] | None = Field(description="and disliked up to this rating, or by these events")
    min_liked: int = Field(ge=1, le=100, description="liked items that a conversation names, the most recent ones")
    max_liked: int = Field(ge=1, le=100)
    max_disliked: int = Field(ge=0, le=100, description="disliked ones that it names, the most recent ones")
    num_truths: int = Field(ge=1, le=1000, description="ground truth: at most so many of the next liked items")
    window_days: float | None = Field(gt=0, description="and within so many days of the first; none for no limit")
    prompts_per_user: Whole = Field(ge=1, description="conversations of one user, at most")
    max_prompts: int = Field(ge=1, le=10_000_000, description="users are drawn until there are about so many")
    genres: str = Field(description="column of the items whose most frequent values a conversation may name")
    templates: FileBelow | None = Field(
        description="file of templates in data.path; none for the shipped histories.txt"
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> "Interactions":
        if self.min_liked > self.max_liked:
            raise ValueError(f"min_liked = {self.min_liked} is more than max_liked = {self.max_liked}; lower it")
        if self.disliked is not None and isinstance(self.liked, list) != isinstance(self.disliked, list):
            raise ValueError(
                f"liked = {self.liked}, disliked = {self.disliked}: both are ratings, or both lists of events"
            )
        if isinstance(self.liked, float) and isinstance(self.disliked, float) and self.disliked >= self.liked:
            raise ValueError(f"disliked = {self.disliked} is not below liked = {self.liked}; lower it")
        return self


class Data(Section):
    """Stage `data`: where conversations and catalog come from, and how they are split."""

    source: Literal["synthetic", "redial", "reddit", "reddit_movie", "files", "interactions"]
    path: str = Field(description="folder of the source's files; a dep of the stage; synthetic reads nothing there")
    catalog: FileBelow | None = Field(description="reddit, files, interactions: name of the catalog's file there")
    line_column: str | None = Field(
        description="files, interactions: column of the catalog that becomes part of an item's line"
    )
    min_upvotes: Whole = Field(ge=-LARGEST, description="reddit_movie: an answer with fewer is no ground truth")
    max_quarantined: Share = Field(description="the stage fails when a larger share of any kind of rows is left out")
    validation_month: Month | None = Field(description="dated sources: validation rows are of this month")
    test_month: Month | None = Field(description="dated sources: test rows are of this month")
    validation_share: Share = Field(
        description="split by conversation, or interactions by user: without months, or where no row has a date"
    )
    test_share: Share
    checks: Checks
    synthetic: Synthetic
    interactions: Interactions

    @model_validator(mode="after")
    def _source_is_complete(self) -> "Data":
        if self.source in ("reddit", "files") and not self.catalog:
            raise ValueError(f"catalog is empty; source {self.source!r} needs the name of its file in data.path")
        if self.line_column is not None and (self.source not in ("files", "interactions") or not self.line_column):
            raise ValueError(
                f"line_column = {self.line_column!r} names a column of the catalog of source 'files' or "
                "'interactions'; give null"
            )
        if (self.validation_month is None) != (self.test_month is None):
            raise ValueError("validation_month and test_month belong together; give both, or null for both")
        if self.source in ("synthetic", "reddit_movie") and not (self.validation_month and self.test_month):
            raise ValueError(f"validation_month and test_month are needed for the dated source {self.source!r}")
        if self.validation_month and self.test_month and self.validation_month >= self.test_month:
            raise ValueError(f"validation_month {self.validation_month} is not before test_month {self.test_month}")
        return self


class Budget(Section):
    """What the teacher may spend, over all calls that the project's cache holds."""

    max_tokens: int | None = Field(ge=1, le=10**12, description="none for no limit")
    max_cost: float | None = Field(gt=0, description="none for no limit; in the currency of the prices")
    prompt_price: float = Field(ge=0, description="of a million prompt tokens")
    completion_price: float = Field(ge=0, description="of a million completion tokens")

    @model_validator(mode="after")
    def _cost_has_prices(self) -> "Budget":
        if self.max_cost is not None and not self.prompt_price and not self.completion_price:
            raise ValueError(f"max_cost = {self.max_cost}, but both prices are 0; give prompt_price, completion_price")
        return self


class Teacher(Section):
    """Who writes the raw lists, and who judges."""

    kind: Literal["simulated", "similarity", "llm"]
    noise: float = Field(ge=0, description="simulated: spread of its errors of judgement, in units of utility")
    fault_rate: Share = Field(description="simulated: share of lines with a fault")
    model: str | None = Field(description="llm: the model's name at the endpoint")
    base_url: Url | None = Field(description="llm: an OpenAI-compatible endpoint; none for the default one")
    temperature: float | None = Field(ge=0, le=2, description="none: the model's own, where it accepts no other")
    max_completion_tokens: int = Field(
        ge=16, le=1_000_000, description="of one answer, a reasoning model's thoughts included"
    )
    max_concurrency: int = Field(ge=1, le=1024, description="calls in flight")
    timeout_seconds: Positive
    max_retries: int = Field(ge=0, le=100, description="of one call, after rate limits, server errors, broken answers")
    max_failed: Share = Field(description="share of the prompts asked at a time that may stay without an answer")
    budget: Budget

    @model_validator(mode="after")
    def _llm_is_named(self) -> "Teacher":
        if self.kind == "llm" and not self.model:
            raise ValueError("model is empty; kind 'llm' needs the name of a chat model")
        return self


class Embedder(Section):
    """What turns items and conversations into vectors."""

    name: str = Field(description="'tfidf', or the name or folder of a sentence-transformers model")
    revision: str | None = Field(description="commit of the Hugging Face model; pin it")
    trust_remote_code: bool = Field(description="run code that lies beside the model's weights; read it first")


Ratio = Annotated[float, Field(gt=0, le=100)]


class Remap(Section):
    """Remap: the catalog items that the teacher's titles name or resemble."""

    conversation_weight: float = Field(ge=0, description="lambda, of the similarity to the conversation")
    min_ratio: Ratio = Field(description="of a fuzzy match whose year fits (rapidfuzz ratio)")
    min_ratio_without_year: Ratio = Field(description="of one for a title without a year")


class Reflect(Section):
    """Reflect: the judge's ratings (-2..2) of the best candidates."""

    top: int = Field(ge=1, le=100_000, description="N_r, candidates that are rated")
    gamma: float = Field(ge=0, description="weight of a rating")
    candidates_per_call: int = Field(ge=1, le=100_000, description="llm: candidates rated in one call")


class Collaborative(Section):
    """Collaborative evidence: what people with similar conversations and similar likes liked."""

    fit_prompts: Whole = Field(ge=0, description="training prompts that the weights are fitted on, 0 for no evidence")
    neighbours: int = Field(ge=1, le=100_000, description="training conversations that vote")
    kept: int = Field(ge=1, le=100_000, description="items of a prompt that each kind of evidence tells apart")


class Adjust(Section):
    """Adjust: the popularity correction s = w * s + b."""

    epochs: Whole = Field(ge=0, description="at most; 0 leaves Adjust out")
    patience: Whole = Field(ge=1, description="stop after so many epochs without a better likelihood on held_out")
    held_out: float = Field(ge=0, lt=1, description="share of the training prompts that it is not fitted on")
    learning_rate: Positive
    batch_size: Whole = Field(ge=1)
    weight_penalty: float = Field(ge=0)
    bias_penalty: float = Field(ge=0)


class Demonstrations(Section):
    """Stage `demonstrations`: Remap, Reflect, collaborative evidence, Adjust."""

    until: Month | None = Field(description="training prompts up to this month get a demonstration; none for all")
    train_share: float = Field(gt=0, le=1, description="the share of them that does")
    prompts: str = Field(description="folder of the LLM teacher's prompts; a dep of the stage")
    teacher: Teacher
    embedder: Embedder
    remap: Remap
    reflect: Reflect
    collaborative: Collaborative
    adjust: Adjust
    ground_truth_first: bool = Field(
        description="a training demonstration begins with the ground truth of its own prompt; then come the best others"
    )


class EmbeddedModel(Section):
    """The small Qwen2 that `name: embedded` makes."""

    vocab_size: int = Field(ge=300, le=1_000_000)
    hidden_size: int = Field(ge=16, le=65_536)
    intermediate_size: int = Field(ge=16, le=1_000_000)
    num_layers: int = Field(ge=1, le=1000)
    num_heads: int = Field(ge=1, le=1024)
    num_key_value_heads: int = Field(ge=1, le=1024)
    conversations: Whole = Field(ge=1, description="training conversations among the texts it is trained on, at most")
    catalog_pages: Whole | None = Field(
        ge=0, description="pages of an index to the catalog among its texts; none: 12 an item, up to 6000"
    )
    epochs: Whole = Field(ge=0)
    learning_rate: Positive
    batch_size: Whole = Field(ge=1)

    @model_validator(mode="after")
    def _heads_divide(self) -> "EmbeddedModel":
        if self.hidden_size % self.num_heads or self.num_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_heads = {self.num_heads} must divide hidden_size = {self.hidden_size} and be a multiple "
                f"of num_key_value_heads = {self.num_key_value_heads}"
            )
        return self


class BaseModelStage(Section):
    """Stage `base_model`: the model before any training on lists."""

    name: str = Field(description="'embedded', or a Hugging Face name or a path")
    revision: str | None = Field(description="commit of the Hugging Face model; pin it")
    trust_remote_code: bool = Field(
        description="run code that lies beside the weights of this model, or of any other that these parameters name "
        "(rank_grpo.start, rewards.model, evaluate --model); read it first"
    )
    dtype: Literal["float32", "bfloat16"]
    embedded: EmbeddedModel


class Lora(Section):
    """Low-rank adapters on every linear layer; they are merged into the model that the stage writes."""

    rank: int = Field(ge=1, le=65_536)
    alpha: Whole = Field(ge=1)
    dropout: float = Field(ge=0, lt=1)


class Optimization(Section):
    """What both training stages share."""

    learning_rate: Positive
    lr_scheduler: Literal["constant", "cosine", "linear"]
    warmup: Share = Field(description="share of the steps")
    adam_beta1: Share
    adam_beta2: Share
    weight_decay: float = Field(ge=0)
    max_grad_norm: Positive
    per_device_batch_size: int = Field(ge=1, le=65_536)
    gradient_accumulation_steps: Whole = Field(ge=1)
    logging_steps: Whole = Field(ge=1)
    save_steps: Whole = Field(ge=1)
    keep_checkpoints: Whole = Field(ge=1, description="the newest so many, and the best")
    gradient_checkpointing: bool


class Training(Optimization):
    """What of the two stages is no argument of their trainers."""

    lora: Lora | None = Field(description="none trains every weight")
    launch: FileBelow | None = Field(
        description="launch file of Accelerate for several processes, below configs/; none for one"
    )
    num_processes: int = Field(ge=1, le=1024, description="processes of such a launch, usually one a GPU")

    def in_one_process(self) -> dict[str, Any]:
        """Return the changes with which one process trains on the same effective batch."""
        factor = 1 if self.launch is None else self.num_processes
        accumulation = factor * self.gradient_accumulation_steps
        return {"launch": None, "num_processes": 1, "gradient_accumulation_steps": accumulation}


class SFT(Training):
    """Stage `sft`: the negative log-likelihood of the demonstrations."""

    num_epochs: float = Field(gt=0, description="the length of the schedule")
    checkpoint_step: Whole | None = Field(ge=1, description="stop at this step of the schedule; none for its end")
    max_length: int = Field(
        ge=16, le=1_000_000, description="tokens of prompt and completion; the prompt is cut to what it leaves"
    )


BY_RANK = ("rank_grpo", "rank_grpo_public")  # the algorithms that `returns` and the penalties of EOS belong to


class Rewards(Section):
    """What a list is rewarded for: the weighted sum."""

    relevance: float = Field(ge=0, description="of a rank: the user liked its item")
    grounded: float = Field(ge=0, description="of a rank: a catalog line to the letter, neither seen nor repeated")
    model: str | None = Field(description="of a list: a Hugging Face sequence classification model; none for none")
    model_weight: float
    model_spread: Literal["ranks", "sequence"] = Field(
        description="the model's reward s enters each rank's return as s/N, or each rank's advantage by its own"
    )

    @model_validator(mode="after")
    def _some_rank_reward(self) -> "Rewards":
        if not self.relevance and not self.grounded:
            raise ValueError("relevance and grounded are both 0; a reward by rank is needed")
        return self


Algorithm = Literal["rank_grpo", "rank_grpo_public", "grpo", "gspo", "dr_grpo", "dapo", "dpo", "sdpo", "sprec"]
PREFERENCES = ("dpo", "sdpo", "sprec")  # the algorithms that the section of that name belongs to


class Preferences(Section):
    """What dpo, sdpo and sprec have beside the rest: they compare a preferred list with the model's own."""

    beta: float | None = Field(gt=0, description="of the loss; none for the published one: 0.1, of sdpo 1.0")
    learning_rate: Positive | None = Field(description="none for rank_grpo.learning_rate")
    negatives: int = Field(ge=1, le=1023, description="sdpo: the model's lists beside each preferred one; others: 1")
    rounds: int = Field(ge=1, le=10_000, description="sprec: rounds of SFT, then DPO against the model so far")


class RankGRPO(Training):
    """Stage `rank_grpo`. The optimiser steps once on `batch * accumulation` completions (times processes)."""

    num_steps: Whole | None = Field(ge=1, description="optimiser steps; none to go by num_epochs")
    num_epochs: float = Field(gt=0, description="passes over the training rows, where num_steps is none")
    decay_step: Whole | None = Field(ge=1, description="from this step on the rate is decayed_learning_rate")
    decayed_learning_rate: float | None = Field(gt=0)
    algorithm: Algorithm = Field(description="rank_grpo_public: as the authors' code averages and treats EOS")
    preferences: Preferences
    start: str = Field(
        min_length=1,
        description="'sft'; a Hugging Face name or folder; a registry version (models:/NAME/VERSION or @ALIAS); "
        "or a trainer's checkpoint, which is continued",
    )
    since: Month | None = Field(description="train on conversations from this month on; none for all")
    rewards: Rewards
    returns: Literal["exp_inf", "exp", "log"]
    return_gamma: float | None = Field(description="Gamma > 1 of `exp` returns")
    num_generations: int = Field(ge=2, le=1024, description="G")
    num_iterations: Whole = Field(ge=1, description="mu; 1 is on-policy")
    beta: float = Field(ge=0, description="weight of the KL penalty to the policy that training starts from")
    epsilon_low: Share | None = Field(description="none for the algorithm's published one; so too below")
    epsilon_high: float | None = Field(ge=0)
    delta: float | None = Field(gt=1, description="cap of the unclipped ratio (two-sided clip); none for no cap")
    overflow_penalty: float = Field(le=0, description="epsilon_o, the advantage of tokens past rank N")
    early_eos_penalty: float = Field(le=0, description="epsilon_u, the advantage of an EOS that comes early")
    exact_eos_reward: float | None = Field(
        ge=0, description="advantage of the EOS of a list of exactly N; none as published: 0, of rank_grpo_public 0.1"
    )
    aggregation: Literal["rank", "token", "grpo", "bnpo", "dr_grpo", "dapo"] | None
    normalization: Literal["group", "within_list"]
    temperature: Positive
    max_completion_length: int = Field(ge=8, le=1_000_000)
    rollouts: Literal["transformers", "beam", "vllm_colocate", "vllm_server"]
    constrained: bool = Field(description="rollouts hold nothing but catalog items, each once, none seen")
    vllm_gpu_memory_utilization: float = Field(gt=0, lt=1, description="vllm_colocate: its share of the GPU's memory")
    vllm_server_url: Url | None = Field(description="vllm_server: where it listens, e.g. http://127.0.0.1:8000")
    sampler_cap: Positive = Field(description="vLLM: cap of the weights that correct for its log-probabilities")
    validation_steps: Whole = Field(ge=1, description="validation is measured every so many steps")
    validation_prompts: Whole = Field(ge=1, description="on so many validation prompts")
    sample_steps: Whole = Field(ge=1, description="some lists of a group are recorded every so many steps")
    output_checkpoint: Literal["best", "last"] = Field(description="best: by validation NDCG")

    @model_validator(mode="after")
    def _consistent(self) -> "RankGRPO":
        if self.returns == "exp" and not (self.return_gamma and self.return_gamma > 1):
            raise ValueError(f"return_gamma = {self.return_gamma}; returns 'exp' need a value above 1")
        if (self.decay_step is None) != (self.decayed_learning_rate is None):
            raise ValueError(
                f"decay_step = {self.decay_step} and decayed_learning_rate = {self.decayed_learning_rate}; "
                "give both or neither"
            )
        if self.decay_step is not None and (self.lr_scheduler != "constant" or self.warmup):
            raise ValueError(
                f"decay_step = {self.decay_step} is a schedule of its own; set lr_scheduler = {self.lr_scheduler!r} to "
                f"'constant' and warmup = {self.warmup} to 0.0"
            )
        if self.rollouts == "vllm_server" and not self.vllm_server_url:
            raise ValueError("vllm_server_url is empty; rollouts 'vllm_server' needs it")
        if self.lora is not None and self.lora.dropout:
            raise ValueError(
                f"lora.dropout = {self.lora.dropout}: lists are sampled and scored without dropout, so that both are "
                "of one distribution; set it to 0.0"
            )
        if self.constrained and self.rollouts.startswith("vllm"):
            raise ValueError(f"constrained = true: not with rollouts {self.rollouts!r}; use transformers or beam")
        for name in ("save_steps", "validation_steps"):
            if getattr(self, name) % self.num_iterations:
                raise ValueError(
                    f"{name} = {getattr(self, name)} is no multiple of num_iterations = {self.num_iterations}; "
                    "a checkpoint amid the updates of one batch of rollouts could not be resumed exactly"
                )
        if self.algorithm in PREFERENCES:
            self._check_preferences()
        completions, factors = self.per_device_batch_size * self.gradient_accumulation_steps, ""
        if self.launch is not None and self.rollouts != "beam":  # a beam group is one search in one process
            completions, factors = completions * self.num_processes, " * num_processes"
        if self.algorithm not in PREFERENCES and completions % self.num_generations:
            raise ValueError(
                f"per_device_batch_size * gradient_accumulation_steps{factors} = {completions} is no multiple of "
                f"num_generations = {self.num_generations}; every group must be whole"
            )
        return self

    @property
    def name(self) -> str:
        """The algorithm as `convrec compare` names it: grpo, rank_grpo:exp_inf, rank_grpo:exp:2.0."""
        if self.algorithm not in BY_RANK:
            return self.algorithm
        gamma = f":{self.return_gamma}" if self.returns == "exp" else ""
        return f"{self.algorithm}:{self.returns}{gamma}"

    @property
    def group_size(self) -> int:
        """The lists of one prompt in a step."""
        if self.algorithm not in PREFERENCES:
            return self.num_generations
        return 1 + (self.preferences.negatives if self.algorithm == "sdpo" else 1)

    def _check_preferences(self) -> None:
        needed = {"constrained": True, "rollouts": "transformers", "num_iterations": 1, "launch": None}
        for name, value in needed.items():
            if getattr(self, name) != value:
                raise ValueError(
                    f"{name} = {json.dumps(getattr(self, name))}: algorithm {self.algorithm!r} compares catalog lists "
                    f"that one process samples for each step; set it to {json.dumps(value)}"
                )
        if self.per_device_batch_size % self.group_size:
            raise ValueError(
                f"per_device_batch_size = {self.per_device_batch_size} is no multiple of {self.group_size}, the lists "
                f"of a prompt with algorithm {self.algorithm!r}; they are compared in one forward pass"
            )
        if self.algorithm == "sprec":
            if self.lora is not None:
                raise ValueError("lora: algorithm 'sprec' changes the reference's weights; set it to null")
            if self.num_steps is not None and self.num_steps < 2 * self.preferences.rounds:
                raise ValueError(
                    f"num_steps = {self.num_steps} has no room for preferences.rounds = {self.preferences.rounds} of "
                    f"two phases each; raise it to {2 * self.preferences.rounds}, or lower rounds"
                )


class Evaluate(Section):
    """Stage `evaluate`: greedy lists on the test split."""

    engine: Literal["transformers", "vllm"]
    batch_size: Whole = Field(ge=1, description="lists that are written at the same time")
    vllm_tensor_parallel_size: int = Field(ge=1, le=1024, description="GPUs over which vLLM spreads the model")
    vllm_gpu_memory_utilization: float = Field(gt=0, lt=1, description="vLLM's share of the GPU's memory")
    max_completion_length: int = Field(ge=8, le=1_000_000)
    bootstrap_samples: int = Field(ge=100, le=100_000)
    constrained: bool = Field(description="SFT and Rank-GRPO write lists from the catalog alone, too")
    max_prompts: Whole | None = Field(ge=1, description="evaluate on this many test prompts; none for all")


class Report(Section):
    """Stage `report`."""

    num_examples: int = Field(ge=0, le=100)
    num_failures: int = Field(ge=0, le=100)


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
        """Return the tags by which runs are compared: profile, algorithm, base model, seed."""
        return {
            "profile": self.common.profile,
            "algorithm": self.rank_grpo.name,
            "base_model": self.base_model.name,
            "seed": str(self.common.seed),
        }

    def list_settings(self) -> dict[str, Any]:
        """Return the arguments of `generation.lists.Settings`: what a model's lists are asked and written with."""
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
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(str(error["loc"][-1]), _known_fields(error["loc"]), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "remove it"
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
