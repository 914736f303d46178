"""A tiny world for the trainer's tests, also run by itself: `python -m tests.training.rl.tiny`."""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType, PartialState
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from convrec.data.catalog import Catalog, Item
from convrec.generation.export import export_model
from convrec.generation.item_tokens import add_item_tokens
from convrec.generation.pretrained import load_tokenizer
from convrec.generation.trie import catalog_trie
from convrec.training.arguments import unnumber_cpu
from convrec.training.checkpoints import CompletionCallback, last_checkpoint
from convrec.training.embedded import END, make_model, train_tokenizer
from convrec.training.launch import end_processes, rank_process
from convrec.training.rl.arguments import RankGRPOConfig
from convrec.training.rl.constrained import RolloutConstraint
from convrec.training.rl.rewards import RankReward
from convrec.training.rl.trainer import RankGRPOTrainer
from convrec.training.stopping import stoppable
from tests.generation.small import save, sizes

NUM_RANKS = 2
CATALOG = Catalog([Item(title, year) for title, year in (("Heat", 1995), ("Up", 2009), ("Dune", 2021), ("Her", 2013))])
LINES = [str(item) for item in CATALOG.items]
SIZES = sizes()
ASKED = "a film please"


def make_tiny_model(folder: Path, has_item_tokens: bool = False) -> Path:
    """Write a model that answers with two catalog lines at random, and return its folder."""
    tokenizer = train_tokenizer(["\n".join(LINES), ASKED] * 20, CATALOG.items, 300)
    model = make_model(tokenizer, **SIZES, seed=0)
    if has_item_tokens:
        add_item_tokens(model, tokenizer, CATALOG)
    end = f"\n{END}" if has_item_tokens else END
    pairs = [f"{one}\n{two}{end}" for one in LINES for two in LINES]
    batch = tokenizer([f"<|user|>{ASKED}<|assistant|>{p}" for p in pairs], padding=True, return_tensors="pt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    for _ in range(60):
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return save(folder, model, tokenizer)


def same_rows() -> Dataset:
    """Return users who only like Up and then Dune, and have seen Heat."""
    truth = [{"title": "Up", "year": 2009}, {"title": "Dune", "year": 2021}]
    row = {"prompt": [{"role": "user", "content": ASKED}], "groundtruth": truth, "seen_titles": ["Heat"]}
    return Dataset.from_list([row] * 64)


def varied_rows() -> Dataset:
    """Return users of whom each asks and likes something else."""
    words = ASKED.split()
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": " ".join(words[(i + j) % 3] for j in range(1 + i % 5))}],
                "groundtruth": [{"title": CATALOG.items[i % 4].title, "year": CATALOG.items[i % 4].year}],
                "seen_titles": [CATALOG.items[i // 4 % 4].title] if i % 3 else [],
            }
            for i in range(16)
        ]
    )


def tiny_trainer(
    model: Path, output: Path, steps=1, rewards=None, kind=RankGRPOTrainer, rows=None, constraint=None, trl=None, **more
):
    """Return a trainer of the tiny model; `trl` holds further arguments of the trainer, `more` of its config."""
    is_ours = issubclass(kind, RankGRPOTrainer)
    usual = {"max_steps": steps, "per_device_train_batch_size": 32, "num_generations": 8, "max_completion_length": 32}
    usual |= {"learning_rate": 3e-3, "lr_scheduler_type": "constant", "seed": 1, "use_cpu": True, "bf16": False}
    usual |= {"report_to": "none", "disable_tqdm": True, "logging_steps": 1, "save_strategy": "no"}
    usual |= {"num_ranks": NUM_RANKS} if is_ours else {}
    arguments = (RankGRPOConfig if is_ours else GRPOConfig)(output_dir=str(output), **usual | more)
    unnumber_cpu(arguments)
    return kind(
        str(model),
        rewards or RankReward(CATALOG, NUM_RANKS),
        arguments,
        train_dataset=rows or same_rows(),
        processing_class=load_tokenizer(model),
        **({"constraint": constraint} if constraint is not None else {}),
        **(trl or {}),
    )


def make_constraint(model: Path, num_ranks: int = NUM_RANKS) -> RolloutConstraint:
    """Return the constraint of a model's rollouts to the catalog."""
    return RolloutConstraint(CATALOG, catalog_trie(CATALOG, load_tokenizer(model)), num_ranks)


def series(trainer: GRPOTrainer, name: str) -> list[float]:
    """Return what was logged under a name."""
    return [float(row[name]) for row in trainer.state.log_history if name in row]


def weights(trainer: GRPOTrainer) -> dict[str, torch.Tensor]:
    """Return a copy of the trained weights."""
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


def score_again(trainer: GRPOTrainer, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return the ids of prompts and completions, the log-probabilities of the completions, and the model's logits."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask, kept = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1), batch["completion_ids"].shape[1]
    scored, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, kept)
    return ids, scored, trainer.model(input_ids=ids, attention_mask=mask).logits[:, -kept - 1 : -1]


def answers(prompts: list, texts: list[str], trainer: GRPOTrainer) -> dict[str, list]:
    """Return these completions of prompts as a rollout function does."""
    encode = trainer._tokenizer
    asked = [encode.apply_chat_template(p, tokenize=False, add_generation_prompt=True) for p in prompts]
    return {"prompt_ids": encode(asked).input_ids, "completion_ids": encode(texts).input_ids, "logprobs": None}


def given_rollouts(prompts: list, trainer: GRPOTrainer) -> dict[str, list]:
    """Return ragged completions that depend on the step and the row's place among those of all processes alone."""
    first, texts = trainer.accelerator.process_index * len(prompts), []
    for place in range(first, first + len(prompts)):
        draw = torch.Generator().manual_seed(1000 * trainer.state.global_step + place)
        chosen = torch.randint(0, len(LINES), (1 + place % 3,), generator=draw).tolist()
        texts.append("\n".join(LINES[i] for i in chosen) + END)
    return answers(prompts, texts, trainer)


def skip_compiling() -> None:
    """Keep DeepSpeed, if it is used, from compiling its communication on a CPU for a minute."""
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        import deepspeed  # noqa: PLC0415

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def shard_on_cpu() -> None:
    """Have FSDP2, if it is used, shard on a CPU: without a GPU, Accelerate silently uses DDP instead."""
    if os.environ.get("ACCELERATE_USE_FSDP") != "true" or torch.cuda.is_available():
        return
    connect = PartialState.__init__

    def connect_as_gpus(state: PartialState, *args: Any, **options: Any) -> None:
        connect(state, *args, **options)
        if state.distributed_type == DistributedType.MULTI_CPU:
            state.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = connect_as_gpus


class _Progress(TrainerCallback):
    """Prints each step, and waits, so that what reads it can act before the next."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def on_step_end(self, args, state, control, **_) -> None:
        if state.is_world_process_zero:
            sys.stdout.write(f"step {state.global_step}\n")
            sys.stdout.flush()
            time.sleep(self._seconds)


def main() -> None:
    """Train in this process, resuming what is there; write the history and the final weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--seconds-between-steps", type=float, default=0.0)
    parser.add_argument("--given-rollouts", action="store_true")
    parser.add_argument("--constrained", action="store_true")
    parser.add_argument("--export", action="store_true", help="write the start as a model, while the trainer lives")
    args = parser.parse_args()
    skip_compiling()
    shard_on_cpu()
    trl = {"rollout_func": given_rollouts} if args.given_rollouts else {}
    constraint = make_constraint(args.model) if args.constrained else None
    own = {"rows": varied_rows(), "constraint": constraint, "trl": trl}
    trainer = tiny_trainer(args.model, args.output, args.steps, **own, **args.options)
    trainer.add_callback(CompletionCallback())
    trainer.add_callback(_Progress(args.seconds_between_steps))
    checkpoint = last_checkpoint(args.output)
    with stoppable(trainer, every=trainer.num_iterations):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    trainer.save_model(str(args.output / "final"))
    if trainer.accelerator.is_main_process:
        history = {"processes": trainer.accelerator.num_processes, "log": trainer.state.log_history}
        (args.output / "history.json").write_text(json.dumps(history))
        if args.export:
            export_model(args.model, args.model, load_tokenizer(args.model), args.output / "start", 1.0)
    end_processes()


if __name__ == "__main__":
    with rank_process():
        main()
