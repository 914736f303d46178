"""Tokenizers of the kinds that the catalog constraint must get right, small models, and the lists of a plain loop."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import GenerationConfig, LogitsProcessor, PreTrainedTokenizerFast

from convrec.generation.jump_forward import pad_prompts
from convrec.generation.line_tokens import LineTokens, add_tokens
from convrec.generation.prompt_tokens import generation_prompt
from convrec.generation.trie import CatalogTrie, ListRequest, LogWeights
from convrec.training.embedded import make_model, train_tokenizer
from tests.generation.small import sizes
from tests.rows import make_items

FILMS = make_items(  # the accent of the second Amélie is a character of its own
    "Alien (1979) | Alien | Alien 3 (1992) | Aliens (1986) | Alien: Covenant (2017) | Heat (1995) | Heat | 3 (2012) | "
    "300 (2006) | Amélie (2001) | Ame\u0301lie (2003) | 千と千尋の神隠し (2001) | 千年女優 (2001) | "
    "🐶 Dog 🐾 (2022) | 🐷 Pig (2021) | Up (2009) | (500) Days of Summer (2009) | [REC] (2007) | "
    "What's Up, Doc? (1972) | M (1931)"
)
_TEXTS = [f"{item}\n{item.title} is a film.\n" for item in FILMS if str(item).isascii()]

# the split of GPT-4 and Qwen2: a newline joins the punctuation before it
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_LLAMA = "{% for m in messages %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% endfor %}"


def _bytes(texts: list[str], vocab_size: int, *split: Any) -> Tokenizer:
    """Return a byte-level tokenizer of these texts, which are split first."""
    tokenizer = Tokenizer(models.BPE())
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, whole])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@cache
def byte_level() -> Any:
    """Return a tokenizer as Qwen2's, in which `)\\n` is one token; PAD is another token than EOS."""
    tokenizer = _bytes(_TEXTS, 330, pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    assert tokenizer.token_to_id(")Ċ") is not None
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=_CHATML,
        clean_up_tokenization_spaces=False,
    )


@cache
def byte_fallback() -> Any:
    """Return a tokenizer as Llama 2's: `▁` begins a text, and the newline is the byte <0x0A>; PAD is EOS."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    titles = [part for text in _TEXTS for part in text.split("\n")]
    trained.train_from_iterator(titles, trainers.BpeTrainer(vocab_size=120, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    merges = [tuple(merge) for merge in model["merges"]]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = trained.normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        chat_template=_LLAMA,
        clean_up_tokenization_spaces=False,
    )


@cache
def spanning() -> Any:
    """Return a byte-level tokenizer without a split into words, trained so that tokens reach over the newline."""
    tokenizer = _bytes(["Heat (1995)\nHeat (1995)\nAlien (1979)\nAlien\nUp (2009)\n" * 4], 340)
    tokenizer.add_special_tokens(["<|end|>"])
    assert any("Ċ" in piece[1:-1] for piece in tokenizer.get_vocab())
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>", clean_up_tokenization_spaces=False
    )


@cache
def embedded() -> Any:
    """Return the embedded model's tokenizer, which has a token for each title."""
    return train_tokenizer(_TEXTS, FILMS, 300)


@cache
def item_tokens() -> Any:
    """Return the byte-level tokenizer with a token for each item but the last, which is written as text."""
    tokenizer = byte_level.__wrapped__()
    add_tokens(tokenizer, [str(item) for item in FILMS[:-1]])
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "embedded": embedded,
    "item_tokens": item_tokens,
    "spanning": spanning,
}


class SmallWorld:
    """A model in float64, where no two scores are as good as equal, a trie, and prompts of several lengths."""

    def __init__(self, kind: str, lines: Sequence[str]):
        self.tokenizer = TOKENIZERS[kind]()
        self.trie = CatalogTrie.build(lines, self.tokenizer)
        self.model = make_model(self.tokenizer, **sizes(heads=2), seed=0).double().eval()
        texts = ["Heat ", "a ", "Alien and Up, or Heat, and one more of them ", "Up "]
        context = generation_prompt(self.tokenizer)
        self.prompts = [self.tokenizer(text + context, add_special_tokens=False).input_ids for text in texts]

    def generate(self, prompts: list[list[int]], *processors: LogitsProcessor, **options: Any) -> list[list[int]]:
        """Return the tokens of transformers' lists, token by token."""
        end = self.tokenizer.eos_token_id
        ids, mask = pad_prompts(prompts, "cpu")
        settings = {"max_new_tokens": self.trie.longest(5), "do_sample": False, "top_k": 0, **options}
        output = self.model.generate(
            ids,
            attention_mask=mask,
            generation_config=GenerationConfig(eos_token_id=end, pad_token_id=end, **settings),
            logits_processor=[*processors],
        )
        rows = output[:, ids.shape[1] :].tolist()
        return [row[: row.index(end) + 1] for row in rows]


def log_weights(weights: Mapping[int, float]) -> LogWeights:
    """Return these logarithms, by item."""
    items = sorted(weights)
    return LogWeights(np.array(items, np.int32), np.array([weights[item] for item in items], np.float32))


def by_item(weights: LogWeights) -> dict[int, float]:
    """Return the logarithms by item."""
    return dict(zip(weights.items.tolist(), weights.logs.tolist(), strict=True))


def greedy_list(
    lines: Sequence[LineTokens], request: ListRequest, eos: int, scores: Callable[[list[int]], Sequence[float]]
) -> tuple[list[int], list[int]]:
    """Return the tokens and the items of the list that takes the best token among those some open item goes on with.

    To the score of a token comes the logarithm of the mean weight of these items. `scores` maps the tokens written so
    far to a score for each token; where each item is one token, those of a list's first token are of all.
    """
    is_one_pass = all(len(tokens) == 1 for line in lines for tokens in line)
    chosen: list[int] = []
    written: list[int] = []
    logs = by_item(request.log_weights)
    while len(chosen) < request.length:
        last = len(chosen) == request.length - 1
        place = 2 * bool(chosen) + last
        open_items = {
            item: (*line[place], eos) if last else line[place]
            for item, line in enumerate(lines)
            if item not in chosen
            and item not in request.banned
            and (request.allowed is None or item in request.allowed)
        }
        begun: tuple[int, ...] = ()
        while begun not in open_items.values():
            step = len(begun)
            weights: dict[int, list[float]] = {}
            for item, line in open_items.items():
                if len(line) > step and line[:step] == begun:
                    weights.setdefault(line[step], []).append(math.exp(logs.get(item, 0.0)))
            row = scores([] if is_one_pass else written)
            guided = {token: row[token] + math.log(sum(own) / len(own)) for token, own in weights.items()}
            best = max(sorted(guided), key=guided.__getitem__)
            begun = (*begun, best)
            written.append(best)
        chosen.append(next(item for item, line in open_items.items() if line == begun))
    return written, chosen
