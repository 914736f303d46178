"""Stage `sft`: the base model learns the demonstrations."""

from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM

from convrec.config import Optimization, Params
from convrec.data.conversations import build_prompt, read_rows
from convrec.generation.tokenizer import load_tokenizer
from convrec.paths import Paths
from convrec.stages.files import STEP_COLUMNS, write_json, write_plot
from convrec.tracking import Run
from convrec.training.callbacks import HistoryCallback, read_history
from convrec.training.checkpoints import mark_finished, training_folder
from convrec.training.export import export_model, lora_config
from convrec.training.launch import is_main_process
from convrec.training.sft import train_sft


def learn(
    params: Params, paths: Paths, frame: list[dict[str, Any]], column: str, folder: Path, record: Run
) -> tuple[Path, Any]:
    """Train the base model on the lists of a column of demonstrations; return the last checkpoint and the tokenizer."""
    config, common = params.sft, params.common
    rows = [
        {
            "prompt": build_prompt(row["messages"], common.instruction, common.list_length),
            "completion": [{"role": "assistant", "content": row[column]}],
        }
        for row in frame
    ]
    tokenizer = load_tokenizer(paths.model("base"))
    saved = train_sft(
        AutoModelForCausalLM.from_pretrained(paths.model("base")),
        tokenizer,
        Dataset.from_list(rows),
        folder,
        [HistoryCallback(folder / "history.jsonl", record.log_metrics)],
        num_epochs=config.num_epochs,
        checkpoint_step=config.checkpoint_step,
        max_length=config.max_length,
        seed=common.seed,
        device=common.device,
        bf16=params.base_model.dtype == "bfloat16",
        peft_config=lora_config(config.lora),
        **config.model_dump(include=set(Optimization.model_fields)),
    )
    return saved, tokenizer


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write the SFT model, its final loss, and its loss curve."""
    config, common = params.sft, params.common
    record.log_dataset(paths.demonstration("train"), "demonstrations")
    inputs = [paths.model("base"), paths.demonstration("train")]
    parameters = {**config.model_dump(), **common.model_dump(include={"seed", "instruction", "list_length"})}
    folder = training_folder("sft", parameters, inputs)
    frame = read_rows(paths.demonstration("train"))
    saved, tokenizer = learn(params, paths, frame, STEP_COLUMNS["adjust"], folder, record)
    if not is_main_process():
        return
    export_model(saved, paths.model("base"), tokenizer, paths.model("sft"), common.repetition_penalty)
    curve = [row for row in read_history(folder / "history.jsonl") if "loss" in row]
    write_plot(paths.plot("sft"), ({"step": int(r["step"]), "loss": r["loss"]} for r in curve))
    write_json(paths.metrics("sft"), {"loss": curve[-1]["loss"], "steps": int(curve[-1]["step"])} if curve else {})
    mark_finished(folder)
