"""Cost of the catalog constraint, guided and not: 128 lists of 20 items, on one core.

    python -m benchmarks.constraint                  # 7,404 and 1,000,000 items: about 20 minutes
    python -m benchmarks.constraint --number 7404    # one size
    python -m benchmarks.constraint --catalog FILE   # your own catalog (csv, jsonl, parquet, pickle)

The tokenizers are the embedded one, the same with item tokens, and a byte-level BPE, in which `)\\n` is a token. Titles
consist of invented words with frequencies by Zipf's law. Times are processor time in the logits processor for scores
that are random numbers; guided lists have weights of 200 random items each. Limits: guided at most twice the time of
the constraint alone; for a million items, 60 s to build the trie and 1 GiB for trie and state.

For catalogs of up to 100,000 items, a model of random weights, as large as the embedded one, also writes the lists,
with the embedded profile's repetition penalty, and the same number of tokens without the constraint. Limit: 5 % of the
generation time.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
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
from convrec.generation.constraint import ConstraintState
from convrec.generation.device_state import DeviceState
from convrec.generation.jump_forward import write_lists
from convrec.generation.line_tokens import add_tokens
from convrec.generation.processors import CatalogConstraint
from convrec.generation.trie import DONE, CatalogTrie, ListRequest, LogWeights
from convrec.project.config.params import load_params
from convrec.training.embedded import CHAT_TEMPLATE, END, SPECIAL, embedded_sizes, make_model, train_tokenizer

NUM_ITEMS, SEEN, WEIGHTED = 7_404, 5, 200
_MOST_WITH_MODEL = 100_000  # items: the model has a row for each item token
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
    - `jumping`: all of the generation of the same lists by jump-forward decoding.
    - `state_bytes`: the processor's memory.
    """

    tokens: int
    free: float
    constrained: float
    processing: float
    guided: float
    jumping: float
    state_bytes: int

    @property
    def share(self) -> float:
        """The processor's share of the generation time."""
        return self.processing / self.constrained


def _clock(device: torch.device) -> float:
    """Return processor time in seconds on a CPU, else the time once the device's work is done."""
    return time.process_time() if device.type == "cpu" else clock(device)


def num_bytes(owner: Any) -> int:
    """Return the size of the arrays and tensors that an object holds."""
    return sum(value.nbytes for value in vars(owner).values() if isinstance(value, np.ndarray | torch.Tensor))


class _Timed(CatalogConstraint):
    """The logits processor with its total time in seconds."""

    seconds = 0.0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        start = _clock(scores.device)
        scores = super().__call__(input_ids, scores)
        self.seconds += _clock(scores.device) - start
        return scores


def draw_requests(trie: CatalogTrie, batch: int, items: int) -> tuple[list[ListRequest], list[ListRequest]]:
    """Return requests without a few seen items, and the same with weights of random items."""
    rng = np.random.default_rng(1)
    plain, guided = [], []
    for _ in range(batch):
        request = ListRequest(items, rng.choice(trie.num_items, SEEN, replace=False).tolist())
        chosen = np.sort(rng.choice(trie.num_items, min(WEIGHTED, trie.num_items), replace=False)).astype(np.int32)
        plain.append(request)
        guided.append(replace(request, log_weights=LogWeights(chosen, rng.random(len(chosen), np.float32))))
    return plain, guided


class Steps(NamedTuple):
    """What the processor took for a batch of lists: its tokens a list, seconds, and bytes."""

    tokens: int
    seconds: float
    state_bytes: int


def follow(trie: CatalogTrie, requests: Sequence[ListRequest], vocab_size: int, eos: int, repeats: int) -> Steps:
    """Return the cost of lists that take the best of random scores, that of the fastest repeat."""
    scores = torch.randn(len(requests), vocab_size, generator=torch.Generator().manual_seed(0))
    found = []
    for _ in range(repeats):
        processor, ids = _Timed(trie, requests), torch.full((len(requests), 1), eos)
        while ids.shape[1] == 1 or not (ids[:, 1:] == eos).any(1).all():
            ids = torch.cat([ids, processor(ids, scores.clone()).argmax(1, keepdim=True)], 1)
        found.append(Steps(ids.shape[1] - 1, processor.seconds, num_bytes(processor._state)))
    return min(found, key=lambda steps: steps.seconds)


def step_milliseconds(
    trie: CatalogTrie, requests: Sequence[ListRequest], vocab_size: int, device: str, repeats: int = 3
) -> dict[str, float]:
    """Return the time of the constraint in a step of greedy lists for given random scores, that of the fastest repeat.

    The masks and moves of the logits processor, a token a step; those of the state on the device, a jump a step; and
    the latter as one CUDA graph. All lists are written, and the time is that of all steps, divided by their number.
    """
    where = torch.device(device)
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(len(requests), vocab_size, generator=draw).to(where)
    found: dict[str, list[float]] = {}
    for _ in range(repeats):
        state = ConstraintState(trie, requests, vocab_size)
        seconds, steps = 0.0, 0
        while not state.is_done:
            own = scores.roll(steps, 1)
            start = clock(where)
            state.advance(state.mask_(own).argmax(1).tolist())
            seconds += clock(where) - start
            steps += 1
        found.setdefault("token by token", []).append(1000 * seconds / steps)
        there, steps = DeviceState(trie, requests, where), 0
        rolled = [scores.roll(i, 1) for i in range(8)]
        start = clock(where)
        while steps % 8 or not bool((there.nodes == DONE).all()):
            there.jump(there.choose(rolled[steps % 8]))
            steps += 1
        found.setdefault("by jumps", []).append(1000 * (clock(where) - start) / steps)
        if where.type == "cuda":
            there, graph = DeviceState(trie, requests, where), torch.cuda.CUDAGraph()
            there.jump(there.choose(scores))
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                there.jump(there.choose(scores))
            start = clock(where)
            for _ in range(steps):
                graph.replay()
            found.setdefault("by jumps, a CUDA graph", []).append(1000 * (clock(where) - start) / steps)
    return {way: min(values) for way, values in found.items()}


def measure(
    model: Any, eos: int, trie: CatalogTrie, *, batch: int, items: int, prompt: int, repeats: int, penalty: float = 1.0
) -> Cost:
    """Return the cost of `batch` greedy lists of `items` items on the model's device, that of the fastest repeat.

    Prompts are `prompt` random tokens. `eos` is the token that ends a list.
    """
    rng = np.random.default_rng(1)
    known = min(1000, model.config.vocab_size)
    prompts = torch.from_numpy(rng.integers(len(SPECIAL), known, (batch, prompt))).to(model.device)
    requests, guided = draw_requests(trie, batch, items)

    def generate(max_new_tokens: int, end: int | None, processors: list[_Timed]) -> tuple[int, float]:
        model.generation_config.eos_token_id = end
        start = _clock(model.device)
        output = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            repetition_penalty=penalty,
            max_new_tokens=max_new_tokens,
            logits_processor=processors,
        )
        return output.shape[1] - prompt, _clock(model.device) - start

    found = []
    for _ in range(repeats + 1):  # the first warms up
        processor = _Timed(trie, requests)
        tokens, constrained = generate(trie.longest(items), eos, [processor])
        _, free = generate(tokens, None, [])
        guide = _Timed(trie, guided)
        generate(trie.longest(items), eos, [guide])
        start = _clock(model.device)
        write_lists(model, prompts.tolist(), trie, requests, penalty=penalty)
        jumping = _clock(model.device) - start
        seconds = free, constrained, processor.seconds, guide.seconds, jumping
        found.append(Cost(tokens, *seconds, num_bytes(processor._state)))
    best = min(found[1:], key=lambda cost: cost.constrained)
    least = {
        name: min(getattr(cost, name) for cost in found[1:]) for name in ("free", "processing", "guided", "jumping")
    }
    return best._replace(**least)


def main() -> None:
    """Measure each catalog with each tokenizer, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bpe", type=int, default=32_000, help="tokens of the BPE (default: %(default)s)")
    parser.add_argument("--catalog", type=Path)
    parser.add_argument(
        "--number", type=int, nargs="+", default=[NUM_ITEMS, 1_000_000], help="items, without --catalog"
    )
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--prompt", type=int, default=100, help="tokens")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = "items", "tokenizer", "vocabulary", "trie", "built", "tokens a list", "alone", "guided", "ratio", "state"
    _print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    notes = []
    for number in [0] if options.catalog else options.number:
        items, words = invented_catalog(number, 30_000)
        if options.catalog:
            items = list(load_catalog(options.catalog, Quarantine()).items)
        texts = [str(item) for item in items[:100_000]]
        notes += _rows("embedded", train_tokenizer(texts[:10_000], items, 1024), items, options)
        tokenizer = train_tokenizer(texts[:10_000], [], 1024)
        add_tokens(tokenizer, [str(item) for item in items])
        notes += _rows("item tokens", tokenizer, items, options)
        notes += _rows("BPE", byte_level_bpe(["\n".join(texts), *words], options.bpe), items, options)
    _print("\n".join(["", *notes]))


def _rows(kind: str, tokenizer: Any, items: Sequence[Item], options: argparse.Namespace) -> Iterator[str]:
    """Print the row of a catalog with a tokenizer; yield a line about the generation time, if it is measured."""
    start = time.process_time()
    trie = CatalogTrie.build([str(item) for item in items], tokenizer)
    built, size = time.process_time() - start, num_bytes(trie)  # before the arrays that it makes when they are needed
    eos, vocab_size = tokenizer.eos_token_id, len(tokenizer)
    requests = draw_requests(trie, options.batch, options.items)
    alone, guided = (follow(trie, own, vocab_size, eos, options.repeats) for own in requests)
    steps = [1000 * own.seconds / own.tokens for own in (alone, guided)]
    shown = [f"{len(items):,}", kind, f"{vocab_size:,}", f"{size / 2**20:.1f} MiB", f"{built:.1f} s"]
    shown += [f"{alone.tokens}, {guided.tokens}", f"{steps[0]:.2f} ms", f"{steps[1]:.2f} ms"]
    _print(f"| {' | '.join([*shown, f'{steps[1] / steps[0]:.2f}', f'{guided.state_bytes / 2**20:.1f} MiB'])} |")
    if len(items) <= _MOST_WITH_MODEL:
        params = load_params(Path("params.yaml"))
        embedded = params.base_model.embedded
        model = make_model(tokenizer, **embedded_sizes(embedded.hidden_size, embedded.num_hidden_layers), seed=0).eval()
        own = {name: getattr(options, name) for name in ("batch", "items", "prompt")}
        cost = measure(model, eos, trie, penalty=params.common.repetition_penalty, repeats=1, **own)
        yield (
            f"{len(items):,} items, {kind}: {cost.tokens} tokens a list in {cost.constrained:.2f} s, {cost.free:.2f} s "
            f"without the constraint, whose share is {cost.share:.1%} (limit 5 %); by jump-forward decoding "
            f"{cost.jumping:.2f} s, {cost.jumping / cost.constrained:.2f} times the time"
        )


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
