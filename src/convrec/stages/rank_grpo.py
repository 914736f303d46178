"""Stage `rank_grpo`: the SFT model is aligned with what users liked."""

from typing import Any

from datasets import Dataset
from transformers import PrinterCallback

from convrec.config import Optimization, Params
from convrec.data.catalog import Catalog
from convrec.data.conversations import build_prompt, distinct_prompts, read_rows
from convrec.evaluation.scoring import mean_scores, score_lists
from convrec.generation.engine import TransformersEngine
from convrec.generation.tokenizer import load_tokenizer
from convrec.paths import Paths
from convrec.rl.arguments import RankGRPOConfig
from convrec.rl.rewards import RankReward
from convrec.rl.trainer import RankGRPOTrainer
from convrec.stages.files import read_catalog, write_json, write_plot
from convrec.tracking import Run
from convrec.training.arguments import shared_arguments
from convrec.training.callbacks import HistoryCallback, ValidationCallback, read_history
from convrec.training.checkpoints import last_checkpoint, mark_finished, training_folder


def _dataset(params: Params, paths: Paths) -> Dataset:
    common = params.common
    return Dataset.from_list(
        [
            {
                "prompt": build_prompt(row["messages"], common.instruction, common.list_length),
                "groundtruth": row["groundtruth"],
                "seen_titles": row["seen_titles"],
            }
            for row in read_rows(paths.split("train"))
        ]
    )


def _validation(
    params: Params, paths: Paths, catalog: Catalog, tokenizer: Any, history: HistoryCallback
) -> ValidationCallback:
    """Return the callback that scores greedy lists for the first validation prompts."""
    common, config = params.common, params.rank_grpo
    rows = read_rows(paths.split("validation"))
    prompts = distinct_prompts(rows)[: config.validation_prompts]
    kept = {row["prompt_id"] for row in prompts}
    rows = [row for row in rows if row["prompt_id"] in kept]
    chats = [build_prompt(row["messages"], common.instruction, common.list_length) for row in prompts]

    def measure(model: Any) -> dict[str, float]:
        engine = TransformersEngine(
            model,
            tokenizer,
            config.per_device_batch_size,
            config.max_completion_length,
            common.repetition_penalty,
        )
        texts = dict(zip((row["prompt_id"] for row in prompts), engine.generate(chats), strict=True))
        return mean_scores(score_lists(texts, rows, catalog, common.list_length, common.cutoffs))

    return ValidationCallback(measure, config.validation_steps, history)


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write the aligned model, its last metrics, and its curves (rewards by rank, validation by step)."""
    config, common = params.rank_grpo, params.common
    catalog = read_catalog(paths.catalog)
    for name in ("train", "validation"):
        record.log_dataset(paths.split(name), name)
    inputs = [paths.model("sft"), paths.split("train"), paths.catalog]
    parameters = {
        **config.model_dump(),
        **common.model_dump(include={"seed", "instruction", "list_length", "repetition_penalty"}),
    }
    folder = training_folder("rank_grpo", parameters, inputs)
    bf16 = params.base_model.dtype == "bfloat16"
    optimization = config.model_dump(include=set(Optimization.model_fields))
    arguments = RankGRPOConfig(
        max_steps=config.num_steps or -1,
        num_train_epochs=config.num_epochs,
        decay_step=config.decay_step,
        decayed_learning_rate=config.decayed_learning_rate,
        num_ranks=common.list_length,
        returns=config.returns,
        return_gamma=config.return_gamma,
        num_generations=config.num_generations,
        num_iterations=config.num_iterations,
        beta=config.beta,
        epsilon=config.epsilon_low,
        epsilon_high=config.epsilon_high,
        overflow_penalty=config.overflow_penalty,
        early_eos_penalty=config.early_eos_penalty,
        aggregation=config.aggregation,
        normalization=config.normalization,
        temperature=config.temperature,
        top_p=config.top_p,
        repetition_penalty=common.repetition_penalty,
        max_completion_length=config.max_completion_length,
        use_vllm=config.use_vllm,
        vllm_gpu_memory_utilization=config.vllm_gpu_memory_utilization,
        **shared_arguments(folder, common.seed, common.device, bf16, **optimization),
    )
    tokenizer = load_tokenizer(paths.model("sft"))
    history = HistoryCallback(folder / "history.jsonl", record.log_metrics)
    trainer = RankGRPOTrainer(
        str(paths.model("sft")),
        RankReward(catalog, common.list_length),
        arguments,
        train_dataset=_dataset(params, paths),
        processing_class=tokenizer,
        callbacks=[history, _validation(params, paths, catalog, tokenizer, history)],
    )
    trainer.remove_callback(PrinterCallback)  # the history callback tells the progress
    trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    trainer.model.generation_config.repetition_penalty = common.repetition_penalty  # for whoever loads the folder
    trainer.model.save_pretrained(paths.model("rank_grpo"))
    tokenizer.save_pretrained(paths.model("rank_grpo"))
    _write_curves(read_history(folder / "history.jsonl"), paths)
    mark_finished(folder)


def _write_curves(history: list[dict[str, float]], paths: Paths) -> None:
    rewards = [row for row in history if "reward" in row]
    checks = [row for row in history if any(name.startswith("validation/") for name in row)]
    write_plot(
        paths.plot("reward"),
        ({"step": int(r["step"]), "reward": r["reward"], "kl": r.get("kl", 0.0)} for r in rewards),
    )
    write_plot(
        paths.plot("reward_by_rank"),
        (
            {"step": int(row["step"]), "rank": int(name.rsplit("_", 1)[1]), "reward": value}
            for row in rewards
            for name, value in row.items()
            if name.startswith("reward/rank_")
        ),
    )
    prefix = "validation/"
    write_plot(
        paths.plot("validation"),
        (
            {
                "step": int(row["step"]),
                **{k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)},
            }
            for row in checks
        ),
    )
    last = {key.removeprefix(prefix): value for key, value in checks[-1].items() if key.startswith(prefix)}
    steps = int(rewards[-1]["step"])
    write_json(paths.metrics("rank_grpo"), {"steps": steps, "reward": rewards[-1]["reward"], "validation": last})
