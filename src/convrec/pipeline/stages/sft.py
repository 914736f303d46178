"""Stage `sft`: the base model learns what people liked, and demonstrations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from datasets import Dataset

from convrec.data.catalog import Catalog
from convrec.data.catalog_requests import PER_LIST, catalog_requests
from convrec.data.conversations import STEP_COLUMNS, Row, distinct_prompts, read_prompts, read_rows, truth_items
from convrec.data.row_files import GROUP, chosen_rows, column_of
from convrec.generation.export import export_model, lora_config
from convrec.generation.line_tokens import tokenize_lines
from convrec.generation.lists import ListSettings
from convrec.generation.pretrained import load_model, load_tokenizer
from convrec.generation.prompt_tokens import generation_prompt, token_ids
from convrec.generation.prompts import TRUNCATED_SHARE, Prompt, PromptBuilder
from convrec.generation.trie import catalog_trie
from convrec.project.code import Key
from convrec.project.config.params import Params
from convrec.project.config.training import SFT, Optimization
from convrec.project.errors import InputError
from convrec.project.graph import training_key
from convrec.project.paths import Paths
from convrec.project.results import write_json, write_plot
from convrec.registry.tracking import Run
from convrec.training.callbacks import HistoryCallback, ValidationCallback, read_history
from convrec.training.checkpoints import finished_model, mark_finished, training_folder
from convrec.training.launch import is_main_process
from convrec.training.sft import train_sft
from convrec.training.targets import ListCollator
from convrec.training.validation import make_measure

MOST_LISTS = 600_000  # that are learned: the published recipe sees 576,000 in its steps


def lists_to_learn(
    config: SFT, train: Sequence[Row], demonstrations: Sequence[Row], catalog: Catalog, seed: int
) -> list[Row]:
    """Return `messages`, `liked` and `others` (catalog indices) of every list: one a demonstration or training prompt.

    Without `likes`, a list is a demonstration alone. With them, what people liked of the items that the conversation
    does not name comes first, and training prompts without a demonstration have a list, too. To these come half as many
    requests that the catalog answers, whose items are learned as if they were liked. Of more than `MOST_LISTS` prompts,
    some are drawn as by `distinct_prompts`, those with a demonstration first.
    """
    if len(demonstrations) > MOST_LISTS:
        demonstrations = distinct_prompts(demonstrations, MOST_LISTS)
    ids, told = column_of(train, "prompt_id"), column_of(demonstrations, "prompt_id")
    more = distinct_prompts(chosen_rows(train, ~ids.isin(told).to_numpy(bool)), MOST_LISTS - len(demonstrations))
    wanted, liked = ids.isin([*told, *column_of(more, "prompt_id")]).to_numpy(bool), dict[str, set[int]]()
    for row in chosen_rows(train, wanted) if config.likes else ():
        new = set(truth_items(row, catalog)) - catalog.indices_of_titles(row["seen_titles"])
        liked.setdefault(row["prompt_id"], set()).update(new)
    places = {str(item): index for index, item in enumerate(catalog.items)}
    rows = []
    for row in demonstrations:
        own = liked.get(row["prompt_id"], set())
        others = [places[line] for line in row[STEP_COLUMNS[config.lists]].split("\n")]
        rows.append((row["messages"], own, [item for item in others if item not in own]))
    rows += [(row["messages"], liked[row["prompt_id"]], []) for row in more if config.likes]
    shown = [(messages, sorted(own), others if config.demonstration_weight else []) for messages, own, others in rows]
    found = [{"messages": messages, "liked": own, "others": others} for messages, own, others in shown if own or others]
    requests = catalog_requests(catalog, int(PER_LIST * len(found)), seed) if config.likes else []
    for words, items in requests:
        found.append({"messages": [{"role": "user", "content": words}], "liked": items, "others": []})
    return found


def with_prompts(rows: list[Row], prompts: PromptBuilder, longest: list[int], length: int, max_length: int) -> Dataset:
    """Return `row`, `prompt` (token ids), `liked` and `others` of lists of at most `length` items.

    A prompt has what `max_length` tokens leave beside the longest list of these items, where that is less than the
    limit of `prompts`. Raises `InputError` where that is too little. Shape: longest (C,), the tokens of each item.
    """
    asked: list[Prompt] = []
    for row in rows:
        size = sum(sorted(longest[item] for item in row["liked"] + row["others"])[-length:]) + 1
        room = max_length - size
        if room < prompts.least:
            raise InputError(
                f"sft.max_length = {max_length}: a list of {size} tokens leaves {room} for its prompt, which needs "
                f"{prompts.least}; set it to {size + prompts.least} or more"
            )
        asked.append(prompts(row["messages"], room))
    parts = (asked[start : start + GROUP] for start in range(0, len(asked), GROUP))
    ids = pa.chunked_array([token_ids(prompts.tokenizer, part) for part in parts], pa.list_(pa.int64()))
    items = {name: [row[name] for row in rows] for name in ("liked", "others")}
    return Dataset.from_dict({"row": range(len(rows)), "prompt": ids, **items})


def learn(params: Params, paths: Paths, folder: Path, record: Run) -> tuple[Path, Any]:
    """Train the base model; return the chosen checkpoint and the tokenizer.

    It is that of the step `checkpoint_step`, or the one whose lists have the best validation NDCG of all epochs.
    """
    config, common = params.sft, params.common
    trust, catalog = params.base_model.trust_remote_code, Catalog.read(paths.catalog)
    tokenizer = load_tokenizer(paths.model("base"), trust_remote_code=trust)
    settings = ListSettings(**params.list_settings())
    prompts = settings.prompts(tokenizer)
    lines = tokenize_lines([str(item) for item in catalog.items], tokenizer, generation_prompt(tokenizer))
    longest = [max(map(len, line)) for line in lines]
    train, demonstrations = read_rows(paths.split("train")), read_rows(paths.demonstration("train"))
    rows = lists_to_learn(config, train, demonstrations, catalog, common.seed)
    dataset = with_prompts(rows, prompts, longest, common.list_length, config.max_length)
    record.log_metrics({TRUNCATED_SHARE: prompts.report("the training split")})
    # bfloat16 loses small updates
    model = load_model(paths.model("base"), trust_remote_code=trust, dtype=torch.float32)
    adapters = config.lora and lora_config(model.config, tokenizer, **config.lora.model_dump(), trust_remote_code=trust)
    history = HistoryCallback(folder / "history.jsonl", record.log_metrics)

    def validate(trainer: Any, steps: int) -> ValidationCallback:
        measure = make_measure(
            trainer,
            read_prompts(paths.split("validation"), config.validation_prompts)[0],
            catalog,
            catalog_trie(catalog, tokenizer) if params.evaluate.constrained else None,
            None,
            settings,
            config.per_device_train_batch_size,
            common.cutoffs,
        )
        return ValidationCallback(measure, steps, f"ndcg_at_{max(common.cutoffs)}", history)

    saved = train_sft(
        model,
        tokenizer,
        dataset,
        folder,
        [history],
        num_train_epochs=config.num_train_epochs,
        checkpoint_step=config.checkpoint_step,
        max_length=config.max_length,
        seed=common.seed,
        device=common.device,
        bf16=params.base_model.dtype == "bfloat16",
        lists=ListCollator(lines, tokenizer.eos_token_id, common.list_length, config.demonstration_weight, common.seed),
        validate=None if config.checkpoint_step else validate,
        peft_config=adapters,
        **config.model_dump(include={*Optimization.model_fields, "weight_decay"}),
    )
    return saved, tokenizer


def key_of(params: Params, paths: Paths) -> Key:
    """Return the key of a training with these parameters and the present inputs."""
    return training_key(
        "sft",
        params,
        [paths.model("base"), paths.catalog, paths.demonstration("train"), *map(paths.split, ("train", "validation"))],
    )


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write the SFT model, its last loss and validation NDCG, and their curves."""
    record.log_dataset(paths.demonstration("train"), "demonstrations")
    key = key_of(params, paths)
    folder = training_folder("sft", key)
    saved, trust = finished_model(folder, key), params.base_model.trust_remote_code
    if saved is None:
        saved, tokenizer = learn(params, paths, folder, record)
    else:
        tokenizer = load_tokenizer(paths.model("base"), trust_remote_code=trust)
    if not is_main_process():
        return
    penalty = params.common.repetition_penalty
    export_model(saved, paths.model("base"), tokenizer, paths.model("sft"), penalty, trust)
    metric = f"validation/ndcg_at_{max(params.common.cutoffs)}"
    history = [row for row in read_history(folder / "history.jsonl") if "loss" in row or metric in row]
    points = [{"step": int(r["step"]), "loss": r.get("loss"), "validation_ndcg": r.get(metric)} for r in history]
    write_plot(paths.plot("sft"), points)
    last = {name: value for point in points for name, value in point.items() if value is not None}
    write_json(paths.metrics("sft"), last)
    mark_finished(folder, saved, key)
