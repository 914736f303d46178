"""Shared parts of the step benchmarks, which run the same training steps with TRL's GRPOTrainer and RankGRPOTrainer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from benchmarks.timing import StepTimes
from convrec.data.catalog import Catalog, build_catalog
from convrec.data.quarantine import Quarantine
from convrec.data.sources.synthetic import embedded_rows
from convrec.generation.pretrained import load_tokenizer
from convrec.training.embedded import END, train_tokenizer
from convrec.training.rl.arguments import RankGRPOConfig
from convrec.training.rl.rewards import RankReward

GENERATIONS, NUM_RANKS = 8, 20
_WORDS = "User: a heist film from the 90s please, tense and dark. Assistant: which did you like? User: Heat. "


def film_catalog() -> Catalog:
    """Return the embedded catalog, without metadata."""
    return build_catalog(embedded_rows(), [], Quarantine())[0]


def film_tokenizer(catalog: Catalog) -> Any:
    """Return a tokenizer that writes a catalog line in a few tokens."""
    return train_tokenizer([str(item) for item in catalog.items], catalog.items, 1024)


def given_rollouts(
    catalog: Catalog, prompt_tokens: int | None, completion_tokens: int | None
) -> Callable[..., dict[str, list]]:
    """Return a rollout function whose lists depend only on the step, so that both trainers get the same.

    Without given numbers of tokens, lists have `NUM_RANKS` lines and prompts have one question.
    """

    def rollouts(prompts: list, trainer: GRPOTrainer) -> dict[str, list]:
        tokenizer: Any = trainer._tokenizer
        draw = torch.Generator().manual_seed(trainer.state.global_step)
        size = len(catalog) if completion_tokens else NUM_RANKS
        lists = [torch.randperm(len(catalog), generator=draw)[:size].tolist() for _ in prompts]
        ids = tokenizer(["\n".join(str(catalog.items[i]) for i in chosen) + END for chosen in lists]).input_ids
        if completion_tokens:
            ids = [row[: completion_tokens - 1] + row[-1:] for row in ids]
        chats = [tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True) for p in prompts]
        asked = tokenizer(chats).input_ids
        if prompt_tokens:
            asked = [(row * prompt_tokens)[-prompt_tokens:] for row in asked]
        return {"prompt_ids": asked, "completion_ids": ids, "logprobs": None}

    return rollouts


def trivial_reward(completions: list, **_: Any) -> list[float]:
    """Return 1 for every other completion, so that advantages are not 0."""
    return [float(i % 2) for i in range(len(completions))]


def make_trainer(
    kind: Callable[..., Any],
    folder: Path,
    catalog: Catalog,
    prompt_tokens: int | None = None,
    completion_tokens: int | None = None,
    *,
    given: bool = True,
    **options: Any,
) -> tuple[GRPOTrainer, StepTimes]:
    """Return a trainer for the model in `folder`, and the times of its steps.

    TRL's trainer gets a trivial reward, the project's a catalog reward. Without `given` rollouts, the trainer samples.
    """
    ours = kind is not GRPOTrainer
    config: Any = RankGRPOConfig if ours else GRPOConfig
    arguments = config(
        output_dir=str(folder / "out"),
        num_generations=GENERATIONS,
        learning_rate=1e-4,
        beta=1e-3,
        use_bias_correction_kl=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        **options,
    )
    repeats = max(1, (prompt_tokens or 0) // 60)  # without given rollouts, prompts are about this long
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{_WORDS} And {catalog.items[i]}. " * repeats}],
            "groundtruth": [{"title": item.title, "year": item.year} for item in catalog.items[i : i + 6]],
            "seen_titles": ["Heat"],
        }
        for i in range(64)
    ]
    times = StepTimes()
    rollouts = {"rollout_func": given_rollouts(catalog, prompt_tokens, completion_tokens)} if given else {}
    trainer = kind(
        str(folder),
        RankReward(catalog, NUM_RANKS) if ours else trivial_reward,
        arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=load_tokenizer(folder),
        callbacks=[times],
        **rollouts,
    )
    return trainer, times
