"""Stage `rank_grpo`: the SFT model is aligned with what users liked."""

import logging
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset
from filelock import FileLock
from transformers import PrinterCallback

from convrec.classical.guidance import Guidance
from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, read_prompts, read_rows
from convrec.data.row_files import GROUP, Rows
from convrec.data.schemas import CONVERSATION_TYPES
from convrec.generation.export import export_model, lora_config
from convrec.generation.item_tokens import write_with_new_items
from convrec.generation.line_tokens import keep_up
from convrec.generation.lists import ListSettings
from convrec.generation.model_folders import find_model, model_files
from convrec.generation.pretrained import load_config, load_tokenizer, refusals, require_chat
from convrec.generation.prompts import TRUNCATED_SHARE, PromptBuilder
from convrec.generation.trie import catalog_trie
from convrec.project.code import TRAINERS, Key, code_files, make_key
from convrec.project.config.params import Params
from convrec.project.config.rank_grpo import RankGRPO, Rewards
from convrec.project.config.training import Optimization
from convrec.project.errors import InputError
from convrec.project.graph import training_key
from convrec.project.paths import CHECKPOINTS, Paths
from convrec.project.results import write_json, write_plot
from convrec.registry.tracking import Run
from convrec.training.arguments import shared_arguments, unnumber_cpu
from convrec.training.callbacks import HistoryCallback, ValidationCallback, read_history
from convrec.training.checkpoints import (
    CompletionCallback,
    best_step,
    complete_checkpoints,
    finished_model,
    has_ended,
    mark_finished,
    prepare_folder,
    training_folder,
)
from convrec.training.launch import is_main_process
from convrec.training.rl.arguments import RankGRPOConfig
from convrec.training.rl.constrained import RolloutConstraint
from convrec.training.rl.preferences import PreferenceTrainer
from convrec.training.rl.rewards import REWARDS, RankReward
from convrec.training.rl.samples import SampleCallback
from convrec.training.rl.trainer import RankGRPOTrainer
from convrec.training.stopping import stoppable
from convrec.training.validation import make_measure

logger = logging.getLogger(__name__)

SAMPLE_STEPS = 30  # between sample lists of one group
_MESSAGES, _TRUTHS, _TITLES = (CONVERSATION_TYPES.field(n).type for n in ("messages", "groundtruth", "seen_titles"))
_EXAMPLES = pa.schema(
    {"prompt": _MESSAGES, "conversation": _MESSAGES, "row": pa.int64(), "groundtruth": _TRUTHS, "seen_titles": _TITLES}
)
MOST_ROWS = 400_000  # that are trained on: all of Reddit-v2


def _dataset(params: Params, paths: Paths, prompts: PromptBuilder) -> tuple[Dataset, Rows]:
    """Return the examples of the training rows, and these rows, of which `row` is an example's place.

    Of more than `MOST_ROWS`, some are drawn at random.
    """
    since = params.rank_grpo.since
    rows = read_rows(paths.split("train"))
    months = rows["date"].str.slice(0, 7)
    if since is not None and (months == "").all():
        raise InputError(f"rank_grpo.since = {since!r}: no training row has a date; give null")
    kept = rows if since is None else rows[months >= since]
    if not len(kept):
        raise InputError(
            f"rank_grpo.since = {since!r}: no training row is that recent; the last row has date {months.max()!r}"
        )
    if len(kept) > MOST_ROWS:
        kept = kept[np.sort(np.random.default_rng(params.common.seed).permutation(len(kept))[:MOST_ROWS])]
    examples = (
        {
            "prompt": prompts(row["messages"]),
            "conversation": row["messages"],
            "row": place,
            "groundtruth": row["groundtruth"],
            "seen_titles": row["seen_titles"],
        }
        for place, row in enumerate(kept)
    )
    parts = iter(lambda: list(islice(examples, GROUP)), [])
    return Dataset(pa.concat_tables([pa.Table.from_pylist(part, _EXAMPLES) for part in parts])), kept


class _Guided:
    """Gives a batch's examples the weights of their items, found when it is trained on, once for all repetitions."""

    def __init__(self, rows: Sequence[Row], guidance: Guidance):
        self.rows, self.guidance = rows, guidance
        self.weights: dict[int, dict[str, list[Any]]] = {}  # of the last batch, by place

    def __call__(self, examples: list[Row]) -> list[Row]:
        places = list(dict.fromkeys(example["row"] for example in examples))
        if places != list(self.weights):  # the sampler repeats a batch for each micro-step and iteration
            # a person's own rows would tell what is to be learnt
            found = self.guidance([self.rows[place] for place in places], training=True)
            self.weights = {
                place: {"guided_items": own.items.tolist(), "log_weights": own.logs.tolist()}
                for place, own in zip(places, found, strict=True)
            }
        return [example | self.weights[example["row"]] for example in examples]


def _rewards(config: Rewards, catalog: Catalog, num_ranks: int) -> tuple[list[Any], list[float]]:
    """Return the reward functions and their weights; those of relevance and of the model are 1."""
    functions: list[tuple[Any, float]] = [(RankReward(catalog, num_ranks), 1.0)]
    functions += [
        (kind(catalog, num_ranks), weight) for name, kind in REWARDS.items() if (weight := getattr(config, name))
    ]
    if config.model:
        functions.append((config.model, 1.0))
    return [function for function, _ in functions], [weight for _, weight in functions]


def _arguments(params: Params, folder: Path, reward_weights: list[float]) -> RankGRPOConfig:
    config, common = params.rank_grpo, params.common
    bf16 = params.base_model.dtype == "bfloat16"
    optimization = config.model_dump(include={*Optimization.model_fields, "lr_scheduler_type"})
    own: dict[str, Any] = config.model_dump(include={"algorithm", "beta"})
    own |= {"returns": config.returns.partition(":")[0], "return_gamma": config.return_gamma}
    if config.algorithm == "dpo":  # a list is one unit, as in GRPO; beta as published
        own = {"algorithm": "grpo", "beta": 0.1 if config.num_generations == 2 else 1.0}
    if config.epsilon is not None:
        own |= dict(zip(("epsilon", "epsilon_high"), config.epsilon, strict=True))
    if config.decay is not None:
        own |= {"decay_step": config.decay.step, "decayed_learning_rate": config.decay.learning_rate}
    return RankGRPOConfig(
        num_generations=config.num_generations,
        max_steps=config.max_steps or -1,
        num_ranks=common.list_length,
        max_completion_length=common.max_completion_length,
        logging_steps=1,
        reward_weights=reward_weights,
        repetition_penalty=common.repetition_penalty,
        model_init_kwargs={"use_safetensors": True},  # of the policy, the reference and a reward model
        trust_remote_code=params.base_model.trust_remote_code,
        vllm_gpu_memory_utilization=params.evaluate.vllm_gpu_memory_utilization,
        use_vllm=config.rollouts.startswith("vllm"),
        vllm_mode=config.rollouts.removeprefix("vllm_") if config.rollouts.startswith("vllm") else "colocate",
        **config.model_dump(include={"num_train_epochs", "vllm_server_base_url"}),
        **own,
        **shared_arguments(folder, common.seed, common.device, bf16, **optimization),
    )


def _limit_steps(arguments: RankGRPOConfig, config: RankGRPO, num_prompts: int) -> None:
    """Lower `max_steps`, if there is one, to the steps of `num_train_epochs` over the prompts, at least one."""
    lists = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
    by_epochs = int(config.num_train_epochs * num_prompts * config.num_generations / lists)
    if by_epochs < arguments.max_steps:
        arguments.max_steps = max(1, by_epochs)
        epochs = f"{config.num_train_epochs:g} epochs over {num_prompts} prompts"
        logger.info("%d of rank_grpo.max_steps = %d steps: %s", arguments.max_steps, config.max_steps, epochs)


def align(
    params: Params, paths: Paths, start: str, folder: Path, record: Run, keep_last: bool = False
) -> tuple[Path, Any]:
    """Train from `start` in `folder`, resuming what is there; return the chosen checkpoint and the tokenizer.

    The checkpoint is the best one, or the last with `keep_last`. If none is better than the start, the start is
    written as `checkpoint-0`, and is the best. The folder's `history.jsonl` holds every logged metric, `samples/`
    some rollouts.
    """
    config, common = params.rank_grpo, params.common
    catalog = Catalog.read(paths.catalog)
    trust = params.base_model.trust_remote_code
    model_config = load_config(start, trust_remote_code=trust)
    if config.rewards.model:
        load_config(config.rewards.model, trust_remote_code=trust)
    tokenizer = load_tokenizer(start, trust_remote_code=trust)
    require_chat(tokenizer, f"rank_grpo.start = {config.start!r}")
    # Before the arguments, with which ZeRO-3 begins.
    adapters = config.lora and lora_config(model_config, tokenizer, **config.lora.model_dump(), trust_remote_code=trust)
    rewards, weights = _rewards(config.rewards, catalog, common.list_length)
    arguments = _arguments(params, folder, weights)
    unnumber_cpu(arguments)
    own = prepare_folder(folder)
    settings = ListSettings(**params.list_settings())
    prompts = settings.prompts(tokenizer)
    guidance = None
    if config.constrained:
        guidance = Guidance.load(paths.guidance, catalog, training=paths.evidence)
    dataset, rows = _dataset(params, paths, prompts)
    _limit_steps(arguments, config, len(dataset))
    record.log_metrics({TRUNCATED_SHARE: prompts.report("the training split")})
    history = HistoryCallback(folder / "history.jsonl", record.log_metrics)
    trie = catalog_trie(catalog, tokenizer) if config.constrained else None
    with refusals(config.rewards.model or start):
        kind: Any = PreferenceTrainer if config.algorithm == "dpo" else RankGRPOTrainer
        trainer: RankGRPOTrainer = kind(
            start,
            rewards,
            arguments,
            None if trie is None else RolloutConstraint(catalog, trie, common.list_length),
            train_dataset=dataset,
            processing_class=tokenizer,
            reward_processing_classes=[
                load_tokenizer(reward, trust_remote_code=trust) if isinstance(reward, str) else None
                for reward in rewards
            ],
            callbacks=[history],
            peft_config=adapters,
        )
    trainer.remove_callback(PrinterCallback)  # the history callback tells the progress
    if guidance is not None:
        collate: Any = _Guided(rows, guidance)
        trainer.data_collator = collate
    measure = make_measure(
        trainer,
        read_prompts(paths.split("validation"), params.sft.validation_prompts)[0],
        catalog,
        trie,
        guidance,
        settings,
        config.per_device_train_batch_size,
        common.cutoffs,
    )
    metric = f"ndcg_at_{max(common.cutoffs)}"
    trainer.add_callback(ValidationCallback(measure, config.save_steps, metric, history))
    sampled = (SAMPLE_STEPS, config.num_generations, folder / "samples")
    trainer.add_callback(
        SampleCallback(trainer.last_group, catalog, *sampled, lambda path: record.log_artifact(path, "samples"))
    )
    trainer.add_callback(CompletionCallback())
    if own is None or not has_ended(own):
        with stoppable(trainer):
            trainer.train(resume_from_checkpoint=str(own) if own else None)
    trainer.accelerator.wait_for_everyone()  # until the first process has completed the last checkpoint
    checkpoints = complete_checkpoints(folder)
    last = max(checkpoints)
    best = last if keep_last else best_step(folder)
    if best == 0:
        logger.warning("no checkpoint has a better validation %s than step 0: the start remains the model", metric)
        checkpoints[0] = folder / "checkpoint-0"
        if is_main_process():
            export_model(Path(start), start, tokenizer, checkpoints[0], common.repetition_penalty, trust)
        trainer.accelerator.wait_for_everyone()
    return checkpoints.get(last if best is None else best, checkpoints[last]), tokenizer


def find_start(params: Params, paths: Paths) -> str:
    """Return the folder of the model that `rank_grpo.start` names; what the hub has is downloaded to its cache.

    Raises `InputError` for a folder that does not exist or lacks a required file, and where the hub lacks the model.
    """
    start, trust = params.rank_grpo.start, params.base_model.trust_remote_code
    if start == "sft":
        return str(paths.model("sft"))
    if start.startswith("models:/"):
        from convrec.registry.versions import download_version  # noqa: PLC0415  (imports mlflow)

        model = download_version(start).checkpoint
    else:
        model = find_model(start, "rank_grpo.start", trust)
    logger.info("starting from the weights of %s, with a new optimizer and schedule, at step 0", start)
    return str(_with_new_items(model, paths.catalog, trust))


def _with_new_items(model: Path, catalog_file: Path, trust_remote_code: bool) -> Path:
    """Return the model, or the folder of a copy with tokens for items of the catalog that are new to it."""
    if not catalog_file.is_file():  # before the stage `data`
        return model
    catalog = Catalog.read(catalog_file)
    if not keep_up(load_tokenizer(model, trust_remote_code=trust_remote_code), catalog):
        return model
    code, inputs = code_files([write_with_new_items.__module__]), [*model_files(model), catalog_file]
    folder = CHECKPOINTS / "starts" / str(make_key({"model": str(model)}, inputs, code, TRAINERS))
    with FileLock(folder.with_suffix(".lock")):  # the processes of a launch do not know each other yet
        if not folder.is_dir():
            new = folder.with_suffix(".partial")
            write_with_new_items(model, new, catalog, trust_remote_code)
            new.rename(folder)
    return folder


def key_of(params: Params, paths: Paths, start: str | None = None) -> Key:
    """Return the key of a training with these parameters, start and the present inputs."""
    config, start = params.rank_grpo, start or find_start(params, paths)
    guidance: list[Path] = []
    if config.constrained:
        guidance = [*paths.guidance.glob("*"), *paths.evidence.rglob("*.safetensors")]
    splits = [paths.split(name) for name in ("train", "validation")]
    rewards = Path(config.rewards.model or "-")  # a folder, or a name of the hub
    models = [*model_files(Path(start)), *(model_files(rewards) if rewards.is_dir() else ())]
    return training_key("rank_grpo", params, [*models, *splits, paths.catalog, *sorted(guidance)])


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write the aligned model, its last metrics, and its curves (rewards by rank, validation by step)."""
    common = params.common
    for name in ("train", "validation"):
        record.log_dataset(paths.split(name), name)
    start = find_start(params, paths)
    key = key_of(params, paths, start)
    folder = training_folder("rank_grpo", key)
    checkpoint, trust = finished_model(folder, key), params.base_model.trust_remote_code
    if checkpoint is None:
        checkpoint, tokenizer = align(params, paths, start, folder, record)
    else:
        tokenizer = load_tokenizer(start, trust_remote_code=trust)
    if not is_main_process():
        return
    logger.info("the model is that of checkpoint %s", checkpoint)
    export_model(checkpoint, start, tokenizer, paths.model("rank_grpo"), common.repetition_penalty, trust)
    widest = max(common.cutoffs)
    shown = (f"ndcg_at_{widest}", f"recall_at_{widest}", "in_catalog", "format")
    _write_curves(read_history(folder / "history.jsonl"), int(checkpoint.name.rsplit("-", 1)[1]), shown, paths)
    mark_finished(folder, checkpoint, key)


def _write_curves(history: list[dict[str, float]], chosen: int, shown: Collection[str], paths: Paths) -> None:
    prefix = "validation/"
    rewards = [row for row in history if "reward" in row]
    checks = [row for row in history if any(name.startswith(prefix) for name in row)]
    curves: dict[str, Iterable[dict[str, Any]]] = {
        "reward": (
            {"step": int(r["step"]), "hits": r["lists/hits"], "kl": r.get("kl", 0.0), "entropy": r.get("entropy")}
            for r in rewards
        ),
        "reward_by_rank": (
            {"step": int(row["step"]), "rank": int(name.rsplit("_", 1)[1]), "reward": value}
            for row in rewards
            for name, value in row.items()
            if name.startswith("reward/rank_")
        ),
        "validation": (
            {"step": int(row["step"])} | {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)}
            for row in checks
        ),
    }
    for name, rows in curves.items():
        write_plot(paths.plot(name), rows)
    best = {int(row["step"]): row for row in checks}.get(chosen, checks[-1])
    validation = {name: best[prefix + name] for name in shown if prefix + name in best}
    steps = {"steps": int(rewards[-1]["step"]), "chosen_step": chosen}
    write_json(paths.metrics("rank_grpo"), {**steps, "hits": rewards[-1]["lists/hits"], "validation": validation})
