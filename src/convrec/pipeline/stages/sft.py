"""Stage `sft`: the base model learns the demonstrations."""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from convrec.data.conversations import STEP_COLUMNS, Row, read_rows
from convrec.generation.engine import TokenIds
from convrec.generation.export import export_model, lora_config
from convrec.generation.line_tokens import completion_tokens
from convrec.generation.pretrained import load_model, load_tokenizer
from convrec.generation.prompt_tokens import generation_prompt, token_ids
from convrec.generation.prompts import TRUNCATED_SHARE, Prompt, PromptBuilder
from convrec.project.code import Key
from convrec.project.config.params import Params
from convrec.project.config.training import Optimization
from convrec.project.errors import InputError
from convrec.project.graph import training_key
from convrec.project.paths import Paths
from convrec.project.results import write_json, write_plot
from convrec.registry.tracking import Run
from convrec.training.callbacks import HistoryCallback, read_history
from convrec.training.checkpoints import finished_model, mark_finished, training_folder
from convrec.training.launch import is_main_process
from convrec.training.sft import train_sft


def training_rows(frame: list[Row], column: str, prompts: PromptBuilder, max_length: int) -> list[Row]:
    """Return the tokens and labels of every demonstration: a prompt and its completion, at most `max_length` tokens.

    They are what the model is asked with later, and what it is to write: exactly the list and the end token. The
    completion stays whole: it alone has labels. So a prompt has what `max_length` leaves, where that is less than the
    limit of `prompts`. Raises `InputError` where a completion leaves too little.
    """
    tokenizer, context = prompts.tokenizer, generation_prompt(prompts.tokenizer)
    asked: list[Prompt] = []
    answers: list[TokenIds] = []
    for row in frame:
        answers.append(completion_tokens(row[column], tokenizer, context))
        room = max_length - len(answers[-1])
        if room < prompts.least:
            raise InputError(
                f"sft.max_length = {max_length}: a demonstration of {max_length - room} tokens leaves {room} for its "
                f"prompt, which needs {prompts.least}; set it to {max_length - room + prompts.least} or more"
            )
        asked.append(prompts(row["messages"], room))
    pairs = list(zip(token_ids(tokenizer, asked), answers, strict=True))
    return [{"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer} for prompt, answer in pairs]


def learn(params: Params, paths: Paths, frame: list[Row], column: str, folder: Path, record: Run) -> tuple[Path, Any]:
    """Train the base model on the lists of a column of demonstrations; return the last checkpoint and the tokenizer.

    The loss is also measured on the first validation demonstrations.
    """
    config, common = params.sft, params.common
    trust = params.base_model.trust_remote_code
    tokenizer = load_tokenizer(paths.model("base"), trust_remote_code=trust)
    prompts = PromptBuilder(tokenizer, common.prompt_instruction, common.list_length, common.max_prompt_length)
    rows = training_rows(frame, column, prompts, config.max_length)
    record.log_metrics({TRUNCATED_SHARE: prompts.report("the demonstrations")})
    held_out = read_rows(paths.demonstration("validation"))[: config.validation_prompts]
    validation = Dataset.from_list(training_rows(held_out, column, prompts, config.max_length)) if held_out else None
    # bfloat16 loses small updates
    model = load_model(paths.model("base"), trust_remote_code=trust, dtype=torch.float32)
    adapters = config.lora and lora_config(model.config, tokenizer, **config.lora.model_dump(), trust_remote_code=trust)
    saved = train_sft(
        model,
        tokenizer,
        Dataset.from_list(rows),
        folder,
        [HistoryCallback(folder / "history.jsonl", record.log_metrics)],
        num_train_epochs=config.num_train_epochs,
        checkpoint_step=config.checkpoint_step,
        max_length=config.max_length,
        seed=common.seed,
        device=common.device,
        bf16=params.base_model.dtype == "bfloat16",
        validation=validation,
        peft_config=adapters,
        **config.model_dump(include=set(Optimization.model_fields)),
    )
    return saved, tokenizer


def key_of(params: Params, paths: Paths) -> Key:
    """Return the key of a training with these parameters and the present inputs."""
    return training_key(
        "sft", params, [paths.model("base"), *(paths.demonstration(name) for name in ("train", "validation"))]
    )


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write the SFT model, its final losses, and its loss curves."""
    record.log_dataset(paths.demonstration("train"), "demonstrations")
    key = key_of(params, paths)
    folder = training_folder("sft", key)
    saved, trust = finished_model(folder, key), params.base_model.trust_remote_code
    if saved is None:
        frame = read_rows(paths.demonstration("train"))
        saved, tokenizer = learn(params, paths, frame, STEP_COLUMNS[params.sft.lists], folder, record)
    else:
        tokenizer = load_tokenizer(paths.model("base"), trust_remote_code=trust)
    if not is_main_process():
        return
    penalty = params.common.repetition_penalty
    export_model(saved, paths.model("base"), tokenizer, paths.model("sft"), penalty, trust)
    history = [row for row in read_history(folder / "history.jsonl") if "loss" in row or "eval_loss" in row]
    points = [{"step": int(r["step"]), "loss": r.get("loss"), "validation_loss": r.get("eval_loss")} for r in history]
    write_plot(paths.plot("sft"), points)
    last = {name: value for point in points for name, value in point.items() if value is not None}
    write_json(paths.metrics("sft"), last)
    mark_finished(folder, saved, key)
