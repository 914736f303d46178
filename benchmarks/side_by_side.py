"""Parts of the step benchmarks: the same training steps on given rollouts with TRL's and the project's trainer."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.constraint import byte_level_bpe, invented_catalog
from benchmarks.timing import clock
from convrec.data.catalog import Catalog
from convrec.data.sources.synthetic import embedded_catalog
from convrec.generation.pretrained import load_tokenizer
from convrec.training.embedded import END, train_tokenizer
from convrec.training.rl.arguments import RankGRPOConfig
from convrec.training.rl.rewards import RankReward

GENERATIONS, NUM_RANKS = 8, 20
_MEDIAN, _SPREAD = 500, 0.8  # of a log-normal distribution of the tokens of a conversation


class World(NamedTuple):
    """A catalog and a tokenizer that writes its lines."""

    catalog: Catalog
    tokenizer: Any

    @classmethod
    def films(cls) -> "World":
        """Return the embedded catalog, without metadata, and a tokenizer of 1,024 tokens."""
        catalog = embedded_catalog()
        return cls(catalog, train_tokenizer([str(item) for item in catalog.items], catalog.items, 1024))

    @classmethod
    def invented(cls, items: int, vocab_size: int) -> "World":
        """Return invented items and a byte-level BPE tokenizer."""
        chosen, words = invented_catalog(items, vocab_size)
        chosen = list({item.id: item for item in chosen}.values())  # some differ in case alone
        return cls(Catalog(chosen), byte_level_bpe(["\n".join(map(str, chosen)), *words], vocab_size))


class Lengths(NamedTuple):
    """Tokens of a prompt and of a completion; None: log-normal prompts, and lists of `NUM_RANKS` lines."""

    prompt: int | None = None
    completion: int | None = None
    longest_prompt: int = 2048


def draw_rollouts(world: World, lengths: Lengths, completions: int, seed: int) -> tuple[list, list]:
    """Return the token ids of prompts, each `GENERATIONS` times in a row, and of their completions."""
    draw = torch.Generator().manual_seed(seed)
    prompts = []
    for _ in range(completions // GENERATIONS):
        random = float(torch.randn((), generator=draw) * _SPREAD)
        length = lengths.prompt or max(16, min(lengths.longest_prompt, int(_MEDIAN * 2.718**random)))
        prompts += [torch.randint(5, 1000, (length,), generator=draw).tolist()] * GENERATIONS
    size = lengths.completion or NUM_RANKS
    lists = [torch.randperm(len(world.catalog), generator=draw)[:size].tolist() for _ in prompts]
    ids = world.tokenizer(["\n".join(str(world.catalog.items[i]) for i in chosen) + END for chosen in lists]).input_ids
    return prompts, [row[: lengths.completion - 1] + row[-1:] if lengths.completion else row for row in ids]


def with_rollouts(kind: type[GRPOTrainer], rollouts: Sequence[tuple[list, list]]) -> type[GRPOTrainer]:
    """Return this trainer with given rollouts, those of step i at i; none of their making falls into a step."""

    class Given(kind):  # type: ignore[valid-type, misc]
        _constraint: Any = None

        def _tokenize_prompts(self, prompts: list) -> Any:
            return rollouts[self.state.global_step][0], None, {}

        def _generate_single_turn(self, prompt_ids: list, *_: Any, **__: Any) -> Any:
            if self._constraint is not None:
                self._constraint.begin(prompt_ids, [{"seen_titles": []} for _ in prompt_ids])
            return rollouts[self.state.global_step][1], None

    return Given


class Timers(TrainerCallback):
    """The seconds of every step and of its parts, by timers that wait for the GPU.

    `score`: decoding, rewards and the reference's log-probabilities; `rest`: what no part covers, metrics for instance.
    """

    def __init__(self) -> None:
        self.seconds: list[dict[str, float]] = []
        self._parts: dict[str, float] = defaultdict(float)
        self._start = self._optimizer_start = 0.0

    def watch(self, trainer: Any) -> None:
        """Time the parts of this trainer's steps."""
        self._device = trainer.accelerator.device
        for holder, name, part in (
            (trainer, "_generate_and_score_completions", "score"),
            (trainer, "_compute_loss", "forward"),
            (trainer.accelerator, "backward", "backward"),
        ):
            setattr(holder, name, self._timed(getattr(holder, name), part))

    def _timed(self, work: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = clock(self._device)
            found = work(*args, **kwargs)
            self._parts[part] += clock(self._device) - start
            return found

        return timed

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._start = clock(self._device)
        self._parts.clear()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._optimizer_start = clock(self._device)

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._parts["optimizer"] += clock(self._device) - self._optimizer_start

    def on_step_end(self, *_: Any, **__: Any) -> None:
        total = clock(self._device) - self._start
        self.seconds.append({**self._parts, "rest": total - sum(self._parts.values()), "step": total})


def trivial_reward(completions: list, **_: Any) -> list[float]:
    """Return 1 for every other completion, so that advantages are not 0."""
    return [float(i % 2) for i in range(len(completions))]


def make_trainer(
    kind: type[GRPOTrainer],
    folder: Path,
    world: World,
    rollouts: Sequence[tuple[list, list]] | None,
    constraint: Any = None,
    **options: Any,
) -> tuple[GRPOTrainer, Timers]:
    """Return a trainer for the model in `folder`, and the times of its steps.

    TRL's trainer gets a trivial reward, the project's a catalog reward. Without given rollouts, the trainer samples.
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
        logging_steps=1,
        **options,
    )
    items = world.catalog.items
    rows = [
        {
            "prompt": [{"role": "user", "content": f"a film like {items[i]}, please"}],
            "groundtruth": [{"title": item.title, "year": item.year} for item in items[i : i + 6]],
            "seen_titles": [],
        }
        for i in range(64)
    ]
    timers = Timers()
    trainer = (kind if rollouts is None else with_rollouts(kind, rollouts))(
        str(folder),
        RankReward(world.catalog, NUM_RANKS) if ours else trivial_reward,
        arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=load_tokenizer(folder),
        callbacks=[timers],
        **({"constraint": constraint} if ours else {}),
    )
    trainer.remove_callback(PrinterCallback)
    timers.watch(trainer)
    return trainer, timers
