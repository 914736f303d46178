"""Cost of the catalog constraint: 128 lists of 20 items from a catalog of 7,404, with an embedded-size model on a CPU.

    python -m benchmarks.constraint                  # the embedded tokenizer: two tokens per item
    python -m benchmarks.constraint --bpe 32000      # byte-level BPE, in which `)\\n` is a token
    python -m benchmarks.constraint --catalog FILE   # your own catalog (csv, jsonl, parquet, pickle)
    python -m benchmarks.constraint --bpe 32000 --number 1000000 --batch 256 --repeats 1   # a large catalog

Weights are random. Titles consist of invented words with frequencies by Zipf's law. Lists are greedy, with the
embedded profile's repetition penalty. For comparison, the same model writes the same number of tokens without the
constraint. Limits: 5 % of the generation time; for a million items, 60 s to build the trie and 1 GiB for trie and
state. Then the lists are guided by weights of 200 random items each: at most twice the time in the processor.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from benchmarks.timing import clock
from convrec.data.catalog import Item
from convrec.data.catalog_files import load_catalog
from convrec.data.quarantine import Quarantine
from convrec.generation.constraint import CatalogTrie, ListRequest
from convrec.generation.processors import CatalogConstraint
from convrec.project.config.params import load_params
from convrec.training.embedded import CHAT_TEMPLATE, END, SPECIAL, make_model, train_tokenizer

NUM_ITEMS, SEEN, WEIGHTED = 7_404, 5, 200
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


def invented_catalog(number: int, num_words: int) -> tuple[list[Item], list[str]]:
    """Return `number` items with invented titles and years from 1930 to 2023, and the words of the titles."""
    rng = np.random.default_rng(0)
    words = draw_words(rng, num_words)
    return [Item(title, int(rng.integers(1930, 2024))) for title in draw_titles(rng, words, number)], words


class Cost(NamedTuple):
    """Tokens of a list, seconds to generate a batch of lists, and bytes.

    - `free`, `constrained`: all of the generation, without and with the constraint.
    - `processing`: the part of `constrained` in the logits processor.
    - `guided`: the time in the processor for lists of the same length that are guided as well.
    - `state_bytes`: the processor's memory.
    """

    tokens: int
    free: float
    constrained: float
    processing: float
    guided: float
    state_bytes: int

    @property
    def share(self) -> float:
        """The processor's share of the generation time."""
        return self.processing / self.constrained


class _Timed(CatalogConstraint):
    """The logits processor with its total time in seconds."""

    seconds = 0.0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        start = clock(scores.device)
        scores = super().__call__(input_ids, scores)
        self.seconds += clock(scores.device) - start
        return scores


def measure(
    model: Any, eos: int, trie: CatalogTrie, *, batch: int, items: int, prompt: int, repeats: int, penalty: float = 1.0
) -> Cost:
    """Return the cost of `batch` greedy lists of `items` items on the model's device, that of the fastest repeat.

    Prompts are `prompt` random tokens. `eos` is the token that ends a list.
    """
    rng = np.random.default_rng(1)
    known = min(1000, model.config.vocab_size)
    prompts = torch.from_numpy(rng.integers(len(SPECIAL), known, (batch, prompt))).to(model.device)
    requests = [ListRequest(items, rng.choice(trie.num_items, SEEN, replace=False).tolist()) for _ in range(batch)]
    weighted = min(WEIGHTED, trie.num_items)
    guided = []
    for request in requests:
        chosen = rng.choice(trie.num_items, weighted, replace=False).tolist()
        guided.append(replace(request, log_weights=dict(zip(chosen, rng.random(weighted).tolist(), strict=True))))

    def generate(max_new_tokens: int, end: int | None, processors: list[_Timed]) -> tuple[int, float]:
        model.generation_config.eos_token_id = end
        start = clock(model.device)
        output = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            repetition_penalty=penalty,
            max_new_tokens=max_new_tokens,
            logits_processor=processors,
        )
        return output.shape[1] - prompt, clock(model.device) - start

    found = []
    for _ in range(repeats + 1):  # the first warms up
        processor = _Timed(trie, requests)
        tokens, constrained = generate(trie.longest(items), eos, [processor])
        _, free = generate(tokens, None, [])
        guide = _Timed(trie, guided)
        generate(trie.longest(items), eos, [guide])
        found.append(Cost(tokens, free, constrained, processor.seconds, guide.seconds, processor.state_bytes))
    best = min(found[1:], key=lambda cost: cost.constrained)
    least = {name: min(getattr(cost, name) for cost in found[1:]) for name in ("free", "processing", "guided")}
    return best._replace(**least)


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
    items, words = invented_catalog(options.number, 30_000 if options.bpe else 4_000)
    if options.catalog:
        items = list(load_catalog(options.catalog, Quarantine()).items)
    lines = [str(item) for item in items]
    params = load_params(Path("params.yaml"))
    sizes = params.base_model.embedded
    if options.bpe:
        tokenizer = byte_level_bpe(["\n".join(lines[:100_000]), *words], options.bpe)
    else:
        tokenizer = train_tokenizer(lines, items, sizes.vocab_size)
    start = time.perf_counter()
    trie = CatalogTrie.build(lines, tokenizer)
    _print(f"{len(lines):,} items, {len(tokenizer):,} tokens, {torch.get_num_threads()} threads")
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
    own = {name: getattr(options, name) for name in ("batch", "items", "prompt", "repeats")}
    cost = measure(model, tokenizer.eos_token_id, trie, penalty=params.common.repetition_penalty, **own)
    _print(f"state: {cost.state_bytes / 2**20:.1f} MiB for {options.batch} lists")
    _print(f"{cost.tokens} tokens a list: {cost.free:.2f} s free, {cost.constrained:.2f} s constrained")
    _print(f"of that in the processor: {cost.processing:.3f} s, {cost.share:.1%} (limit 5 %)")
    ratio = cost.guided / cost.processing
    _print(
        f"guided by {WEIGHTED} items a list: {cost.guided:.3f} s in the processor, {ratio:.2f} times as much (limit 2)"
    )


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
