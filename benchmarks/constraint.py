"""Cost of the catalog constraint: 128 lists of 20 items from a catalog of 7,404, with an embedded-size model on a CPU.

    python -m benchmarks.constraint                  # the embedded tokenizer: two tokens per item
    python -m benchmarks.constraint --bpe 32000      # byte-level BPE, in which `)\\n` is a token
    python -m benchmarks.constraint --catalog FILE   # your own catalog (csv, jsonl, parquet, pickle)
    python -m benchmarks.constraint --bpe 32000 --number 1000000 --batch 256 --repeats 1   # a large catalog

Weights are random. Titles consist of invented words with frequencies by Zipf's law. Lists are greedy, with the
embedded profile's repetition penalty. For comparison, the same model writes the same number of tokens without the
constraint. Limits: 5 % of the generation time; for a million items, 60 s to build the trie and 1 GiB for trie and
state.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from convrec.config.params import load_params
from convrec.data.catalog import Item
from convrec.data.catalog_files import load_catalog
from convrec.data.quarantine import Quarantine
from convrec.generation.constraint import CatalogTrie, ListRequest
from convrec.generation.processors import CatalogConstraint
from convrec.training.embedded import CHAT_TEMPLATE, END, SPECIAL, make_model, train_tokenizer

NUM_ITEMS, SEEN = 7_404, 5
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SMALL = ("The", "of", "the", "and", "A", "in", "2", "Love", "3", "to")
_SYLLABLES = "ba ber co dan del do el fra gen ha in jo ka la len ma mi mor na nor o pa ra ri sa ser sto ta ton wa"


def draw_words(rng: np.random.Generator, number: int) -> list[str]:
    """Return `number` words: the most common words of titles, then words of two to four syllables."""
    syllables = _SYLLABLES.split()
    words = dict.fromkeys(_SMALL)
    while len(words) < number:
        words["".join(rng.choice(syllables, rng.integers(2, 5))).title()] = None
    return list(words)


def draw_titles(rng: np.random.Generator, words: Sequence[str], number: int) -> list[str]:
    """Return `number` different titles of one to six words; one in fifty has a non-ASCII letter."""
    frequency = 1 / np.arange(1, len(words) + 1)
    titles: dict[str, None] = {}
    while len(titles) < number:
        sizes = rng.choice(6, number, p=[0.2, 0.3, 0.25, 0.15, 0.07, 0.03]) + 1
        drawn = np.split(rng.choice(words, sizes.sum(), p=frequency / frequency.sum()), sizes.cumsum()[:-1])
        for own, draw in zip(drawn, rng.random(number), strict=True):
            title = " ".join(own)
            titles[title.replace("a", "á") if draw < 0.02 else title] = None
    return list(titles)[:number]


def byte_level_bpe(texts: Sequence[str], vocab_size: int) -> Any:
    """Return a byte-level BPE tokenizer with the word splitting of Qwen2."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_WORDS), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=SPECIAL[0], eos_token=END, clean_up_tokenization_spaces=False
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


class Timed(CatalogConstraint):
    """The logits processor with its total time in seconds."""

    seconds = 0.0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        start = time.perf_counter()
        scores = super().__call__(input_ids, scores)
        self.seconds += time.perf_counter() - start
        return scores


def main() -> None:
    """Build the trie, generate lists, and print times and sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bpe", type=int, metavar="TOKENS", help="use a byte-level BPE with this many tokens")
    parser.add_argument("--catalog", type=Path)
    parser.add_argument("--number", type=int, default=NUM_ITEMS, help="items without --catalog (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--prompt", type=int, default=100, help="tokens")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    words = draw_words(rng, 30_000 if options.bpe else 4_000)
    if options.catalog:
        items = list(load_catalog(options.catalog, Quarantine()).items)
    else:
        items = [Item(title, int(rng.integers(1930, 2024))) for title in draw_titles(rng, words, options.number)]
    lines = [str(item) for item in items]
    params = load_params(Path("params.yaml"))
    sizes = params.base_model.embedded
    if options.bpe:
        tokenizer = byte_level_bpe(["\n".join(lines[:100_000]), *words], options.bpe)
    else:
        tokenizer = train_tokenizer(lines, items, sizes.vocab_size)
    start = time.perf_counter()
    trie = CatalogTrie.build(lines, tokenizer)
    _print(f"{len(items):,} items, {len(tokenizer):,} tokens, {torch.get_num_threads()} threads")
    _print(f"trie: built in {time.perf_counter() - start:.2f} s, {trie.nbytes / 2**20:.1f} MiB")

    model = make_model(
        tokenizer,
        sizes.hidden_size,
        sizes.intermediate_size,
        sizes.num_hidden_layers,
        sizes.num_attention_heads,
        sizes.num_key_value_heads,
        seed=0,
    ).eval()
    prompts = torch.from_numpy(rng.integers(len(SPECIAL), 1000, (options.batch, options.prompt)))
    requests = [
        ListRequest(options.items, rng.choice(len(items), SEEN, replace=False).tolist()) for _ in range(options.batch)
    ]

    def generate(max_new_tokens: int, eos: int | None, processors: list[CatalogConstraint]) -> tuple[int, float]:
        model.generation_config.eos_token_id = eos
        start = time.perf_counter()
        output = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            repetition_penalty=params.common.repetition_penalty,
            max_new_tokens=max_new_tokens,
            logits_processor=processors,
        )
        return output.shape[1] - options.prompt, time.perf_counter() - start

    constrained, free, processing = [], [], []
    for _ in range(options.repeats + 1):  # the first warms up
        processor = Timed(trie, requests)
        tokens, seconds = generate(trie.longest(options.items), tokenizer.eos_token_id, [processor])
        constrained.append(seconds)
        processing.append(processor.seconds)
        free.append(generate(tokens, None, [])[1])
    best = min(range(1, len(constrained)), key=constrained.__getitem__)
    share = processing[best] / constrained[best]
    _print(f"state: {processor.state_bytes / 2**20:.1f} MiB for {options.batch} lists")
    _print(f"{tokens} tokens a list: {min(free[1:]):.2f} s free, {constrained[best]:.2f} s constrained")
    _print(f"of that in the processor: {processing[best]:.3f} s, {share:.1%} (limit 5 %)")


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
