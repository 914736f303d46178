"""Stage `base_model`: the model before any training on lists."""

import logging
from typing import Any

import numpy as np
from datasets import Dataset

from convrec.classical.collaborative import Likes
from convrec.data.catalog import Catalog
from convrec.data.conversations import build_prompt, distinct_prompts, read_rows
from convrec.generation.export import export_model, write_model
from convrec.generation.item_tokens import MOST_ITEM_TOKENS, add_item_tokens
from convrec.generation.line_tokens import encode, hold_lines, item_tokens
from convrec.generation.pretrained import load_model, load_tokenizer, require_chat
from convrec.generation.prompt_tokens import render
from convrec.generation.trie import catalog_trie, require_length
from convrec.project.config.params import Params
from convrec.project.errors import InputError
from convrec.project.graph import training_key
from convrec.project.paths import Paths
from convrec.project.results import write_json, write_plot
from convrec.registry.tracking import Run
from convrec.training.callbacks import HistoryCallback, read_history
from convrec.training.checkpoints import finished_model, mark_finished, training_folder
from convrec.training.embedded import (
    END,
    catalog_cards,
    catalog_pages,
    embedded_sizes,
    make_model,
    page_budget,
    set_title_vectors,
    train_tokenizer,
)
from convrec.training.sft import train_sft

logger = logging.getLogger(__name__)


def _make_embedded(params: Params, paths: Paths, catalog: Catalog, record: Run) -> None:
    """Train tokenizer and model on the training split's conversations and the catalog, nothing else."""
    config, common = params.base_model.embedded, params.common
    prompts = [
        build_prompt(row["messages"], common.prompt_instruction, common.list_length)
        for row in distinct_prompts(read_rows(paths.split("train")))
    ]
    cards = catalog_cards(catalog)
    tokenizer = train_tokenizer([p[0]["content"] for p in prompts] + cards, catalog.items, config.vocab_size)
    model = make_model(tokenizer, **embedded_sizes(config.hidden_size, config.num_hidden_layers), seed=common.seed)
    logger.info("embedded model: %d parameters, %d tokens", model.num_parameters(), len(tokenizer))
    likes = Likes.of(read_rows(paths.split("train")), catalog).matrix
    if config.co_occurrence:
        set_title_vectors(model, tokenizer, catalog.items, likes)
    if common.item_tokens:
        add_item_tokens(model, tokenizer, catalog, likes)
    num_pages = page_budget(len(catalog)) if config.catalog_pages is None else config.catalog_pages
    pages = catalog_pages(catalog, num_pages, common.list_length, common.seed)
    order = np.random.default_rng(common.seed).permutation(len(prompts))[: config.conversations]
    talks = [render(tokenizer, prompts[i], add_generation_prompt=False) for i in order]
    parts = [text.partition("\n") for text in cards + pages]  # a page begins with words, and a card ends with them
    lists = [hold_lines(item + end, tokenizer) + words for item, end, words in parts[: len(cards)]]
    lists += [words + end + hold_lines(items, tokenizer) for words, end, items in parts[len(cards) :]]
    texts = encode([text + END for text in talks + lists], tokenizer)
    key = training_key("base_model", params, [paths.catalog, paths.split("train")])
    folder = training_folder("base_model", key)
    history = HistoryCallback(folder / "history.jsonl", record.log_metrics)
    if config.conversations:
        saved = finished_model(folder, key) or train_sft(
            model,
            tokenizer,
            Dataset.from_dict({"input_ids": texts, "labels": texts}),
            folder,
            [history],
            num_train_epochs=1,
            checkpoint_step=None,
            max_length=512,
            seed=common.seed,
            device=common.device,
            bf16=False,
            learning_rate=1e-3,
            weight_decay=0.0,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=1,
            logging_steps=20,
            save_steps=200,
            gradient_checkpointing=False,
        )
        export_model(saved, saved, tokenizer, paths.model("base"), common.repetition_penalty)
        mark_finished(folder, saved, key)
    else:
        write_model(model, tokenizer, paths.model("base"))
    losses = [row for row in read_history(folder / "history.jsonl") if "loss" in row]
    write_plot(paths.plot("base_model"), ({"step": int(r["step"]), "loss": r["loss"]} for r in losses))


def _copy_pretrained(params: Params, paths: Paths, catalog: Catalog) -> None:
    """Take a Hugging Face model, by name (pinned by revision) or path, as it is but for item tokens."""
    import torch  # noqa: PLC0415

    config = params.base_model
    chosen: dict[str, Any] = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    tokenizer = load_tokenizer(config.name, **chosen)
    require_chat(tokenizer, f"base_model.name = {config.name!r}")
    model = load_model(config.name, dtype=getattr(torch, config.dtype), **chosen)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if params.common.item_tokens or item_tokens(tokenizer):
        likes = Likes.of(read_rows(paths.split("train")), catalog)
        logger.info("%d item tokens", add_item_tokens(model, tokenizer, catalog, likes.matrix))
    write_model(model, tokenizer, paths.model("base"))
    write_plot(paths.plot("base_model"), [{"step": 0, "loss": float("nan")}])


def run(params: Params, paths: Paths, record: Run) -> None:
    """Write the base model and its tokenizer as a Hugging Face folder."""
    catalog = Catalog.read(paths.catalog)
    if params.common.item_tokens and len(catalog) > MOST_ITEM_TOKENS:
        raise InputError(
            f"common.item_tokens: the catalog has {len(catalog):,} items, and item tokens suit {MOST_ITEM_TOKENS:,} at "
            "most (docs/training.md); set it to false, which writes titles as text, or select items"
        )
    if params.base_model.name == "embedded":
        _make_embedded(params, paths, catalog, record)
    else:
        _copy_pretrained(params, paths, catalog)
    if params.rank_grpo.constrained and params.rank_grpo.start == "sft":  # that stage comes hours later
        tokenizer = load_tokenizer(paths.model("base"), trust_remote_code=params.base_model.trust_remote_code)
        trie, length = catalog_trie(catalog, tokenizer), params.common.max_completion_length
        require_length("common.max_completion_length", length, trie, params.common.list_length)
    num_bytes = sum(file.stat().st_size for file in paths.model("base").glob("*.safetensors"))
    write_json(paths.metrics("base_model"), {"megabytes": num_bytes / 1e6})
