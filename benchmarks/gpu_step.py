"""Step time, tokens per second and peak memory against TRL's GRPOTrainer, on one GPU.

A random model of the shape of Qwen2.5-0.5B in bf16, 2,048 tokens of prompt and 400 of completion, G = 8, on given
rollouts. Beside torch it needs transformers, accelerate and TRL only.

    PYTHONPATH=src:. python -m benchmarks.gpu_step
"""

import gc
import sys
import tempfile
from pathlib import Path
from statistics import median

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.side_by_side import GENERATIONS, TRAINERS, film_catalog, film_tokenizer, make_trainer

PROMPT_TOKENS, COMPLETION_TOKENS, STEPS, ROUNDS = 2048, 400, 8, 3


def main() -> None:
    """Print one line a trainer, and the ratios."""
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU")
    config = Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    catalog = film_catalog()
    tokenizer = film_tokenizer(catalog)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        options = {"max_steps": STEPS, "logging_steps": STEPS, "per_device_train_batch_size": GENERATIONS}
        options |= {"bf16": True, "max_completion_length": COMPLETION_TOKENS, "gradient_checkpointing": True}
        figures: dict[type, tuple[list[float], list[int]]] = {kind: ([], []) for kind in TRAINERS}
        for _ in range(ROUNDS):
            for kind, (seconds, peaks) in figures.items():
                lengths = PROMPT_TOKENS, COMPLETION_TOKENS
                trainer, times = make_trainer(kind, folder, catalog, *lengths, **options)
                torch.cuda.reset_peak_memory_stats()
                trainer.train()
                seconds += times.seconds[2:]
                peaks.append(torch.cuda.max_memory_allocated())
                tokens = trainer.state.num_input_tokens_seen / STEPS
                del trainer, times
                gc.collect()  # trainers hold themselves in cycles
                torch.cuda.empty_cache()
    for kind, (seconds, peaks) in figures.items():
        rate, gib = tokens / median(seconds), max(peaks) / 2**30
        sys.stdout.write(f"{kind.__name__}: {median(seconds):.3f} s a step, {rate:,.0f} tokens/s, {gib:.2f} GiB\n")
    (theirs, their_peaks), (ours, our_peaks) = figures.values()
    ratio, memory = median(ours) / median(theirs), max(our_peaks) / max(their_peaks)
    sys.stdout.write(f"ratios: {ratio:.3f} of TRL's time, {memory:.3f} of its memory\n")


if __name__ == "__main__":
    main()
