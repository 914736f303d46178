"""Export: from a trainer's checkpoint to a model folder that any library can load."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from convrec.generation.finite import check_weights
from convrec.generation.line_tokens import item_tokens
from convrec.generation.pretrained import load_config, load_model
from convrec.project.errors import InputError


def lora_config(
    config: Any, tokenizer: Any, r: int, lora_alpha: int, lora_dropout: float, trust_remote_code: bool = False
) -> LoraConfig:
    """Return PEFT's configuration of adapters on every linear layer but the head, and of the rows of item tokens.

    `config` is that of the model. The rows are those of its input embeddings and of its head. Raises `InputError` for
    item tokens of a model whose head has a bias, which PEFT's trained rows leave out.
    """
    rows: Any = sorted(item_tokens(tokenizer).values()) or None
    if rows:
        with torch.device("meta"):  # the modules without their weights
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        ends = (model.get_input_embeddings(), model.get_output_embeddings())
        if getattr(ends[1], "bias", None) is not None:
            raise InputError(
                f"lora: a model of type {config.model_type!r} has a bias in its head, beside which adapters do not "
                "train item tokens; set lora to null, or common.item_tokens to false"
            )
        rows = {name: rows for name, module in model.named_modules() if module in ends}
    return LoraConfig(
        r=r,
        lora_alpha=lora_alpha,
        lora_dropout=lora_dropout,
        target_modules="all-linear",
        trainable_token_indices=rows,
        task_type="CAUSAL_LM",
    )


def export_model(
    saved: Path,
    base: str | Path,
    tokenizer: Any,
    folder: Path,
    repetition_penalty: float,
    trust_remote_code: bool = False,
) -> None:
    """Write the model that a trainer saved, in the number format of `base`, with its penalty for decoding.

    Trainings save their weights in float32 or bfloat16. Adapters are merged into `base`. One process writes it, after
    the training. Raises as `write_model` does.
    """
    unset_hf_deepspeed_config()  # after ZeRO-3, a model would be loaded in parts, together with the other processes
    model: Any
    if (saved / "adapter_config.json").is_file():
        whole = load_model(base, trust_remote_code=trust_remote_code, dtype=torch.float32)
        adapted: Any = PeftModel.from_pretrained(whole, str(saved))
        model = adapted.merge_and_unload()
    else:
        model = load_model(saved, trust_remote_code=trust_remote_code)
    model.generation_config.repetition_penalty = repetition_penalty
    dtype = load_config(base, trust_remote_code=trust_remote_code).dtype
    write_model(model.to(dtype or model.dtype), tokenizer, folder)


def write_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write model and tokenizer to a folder that anything can load.

    Raises `NotFiniteError` where a weight is inf or NaN; nothing is written then.
    """
    check_weights(model, folder)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
