"""Cost of padding in SFT: forward and backward pass of the embedded model, with and without padding, on a CPU.

Batches have 8 rows of random tokens with the lengths of the embedded data: prompts of 52 tokens (standard deviation
13), completions of 41. Rounds alternate; the CPU time of a step is compared.

    python -m benchmarks.sft_step
"""

import copy
import sys
import time
from statistics import median
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl.trainer import utils as trl_utils
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from convrec.training.cpu_head import use_cpu_head
from convrec.training.padding_free import drop_padding

VOCABULARY, BATCH, STEPS, ROUNDS = 1678, 8, 10, 5
PROMPT, SPREAD, COMPLETION = 52, 13, 41


def batches(padding_free: bool) -> tuple[list[dict[str, Any]], float]:
    """Return the batches of a round, and the share of padding in them."""
    draw = torch.Generator().manual_seed(0)
    collate = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=padding_free)
    lengths = (torch.randn(STEPS * BATCH, generator=draw) * SPREAD + PROMPT).clamp(min=20).long().tolist()
    rows = []
    for length in lengths:
        ids = torch.randint(1, VOCABULARY, (length + COMPLETION,), generator=draw).tolist()
        rows.append({"input_ids": ids, "labels": [-100] * length + ids[length:]})
    found = [collate(rows[first : first + BATCH]) for first in range(0, len(rows), BATCH)]
    size = sum(batch["input_ids"].numel() for batch in found)
    return found, 1 - (sum(lengths) + COMPLETION * len(lengths)) / size


def seconds(model: Any, given: list[dict[str, Any]]) -> float:
    """Return the CPU time of the forward and backward pass of each batch."""
    start = time.process_time()
    for batch in given:
        output = model(**batch, use_cache=False, fused_lm_head=True)
        (-output.log_probs.sum() / output.label_mask.sum()).backward()
        model.zero_grad()
    return time.process_time() - start


def main() -> None:
    """Print one line for each variant, as a ratio to TRL's."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=160,
        intermediate_size=448,
        num_hidden_layers=3,
        num_attention_heads=5,
        num_key_value_heads=5,
        tie_word_embeddings=True,
    )
    padded = Qwen2ForCausalLM(config)
    packed = copy.deepcopy(padded)
    drop_padding(packed)
    for model in (padded, packed):
        trl_utils.add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
    theirs = trl_utils._use_triton, trl_utils._ChunkedLogProbFunction
    use_cpu_head()
    ours = trl_utils._use_triton, trl_utils._ChunkedLogProbFunction
    names = ("padded, TRL's head", "padded, the head of a CPU", "no padding, the head of a CPU")
    times: dict[str, list[float]] = {name: [] for name in names}
    (with_padding, share), (without, _) = batches(False), batches(True)
    for _ in range(ROUNDS + 1):
        for name, own in times.items():
            trl_utils._use_triton, trl_utils._ChunkedLogProbFunction = theirs if name == names[0] else ours
            own.append(seconds(*((packed, without) if name == names[2] else (padded, with_padding))))
    sys.stdout.write(f"padding: {share:.1%} of the tokens of padded batches\n")
    base = median(times[names[0]][1:])
    for name, own in times.items():
        tokens = STEPS * BATCH * (PROMPT + COMPLETION) / median(own[1:])
        sys.stdout.write(f"{name}: {median(own[1:]) / base:.2f} of the time, {tokens:,.0f} tokens/s\n")


if __name__ == "__main__":
    main()
