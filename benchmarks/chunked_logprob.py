"""Time of a training pass with TRL's token tiles of several sizes, against the model's own loss, on this machine.

python -m benchmarks.chunked_logprob
"""

import sys

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl.kernels import chunked_logprob
from trl.trainer.utils import add_fused_lm_head

from benchmarks.timing import least_seconds

TILES = (4096, 1024, 512, 256)
REPEATS = 5


def main() -> None:
    """Print one line a tile size, as a ratio to the plain loss."""
    torch.manual_seed(0)
    config = Qwen2Config(  # the embedded model's sizes, its rollouts' batch
        vocab_size=1678,
        hidden_size=160,
        intermediate_size=448,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=8,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config)
    ids = torch.randint(0, config.vocab_size, (128, 108))
    plain = least_seconds(lambda: model(input_ids=ids, labels=ids).loss.backward(), REPEATS)
    sys.stdout.write(f"plain loss: {plain:.3f} s for {ids.numel()} tokens\n")
    add_fused_lm_head(model)
    for tile in TILES:
        chunked_logprob.TOKEN_CHUNK_SIZE = tile
        fused = least_seconds(
            lambda: model(input_ids=ids, labels=ids, fused_lm_head=True).log_probs.sum().backward(), REPEATS
        )
        sys.stdout.write(f"tile of {tile:5d} tokens: {fused / plain:.2f} of the plain loss's time\n")


if __name__ == "__main__":
    main()
