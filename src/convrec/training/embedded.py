"""The embedded base model: a small Qwen2 with its own BPE tokenizer and chat template, built from scratch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed

from convrec.data.catalog import Catalog, Item
from convrec.generation.item_tokens import co_occurrence_vectors

PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL = (PAD, USER, ASSISTANT, END)

# Words keep the space before them.
_PIECES = r" ?[^\W\d]+| ?\d{1,4}| ?[^\s\w]+|\s"

_MOST_PAGES = 6000
_LONGEST_HEADING = 30  # characters: a genre, a theme or a name, but no plot

# Only the assistant's messages end with the end token. If the prompt contained it, a repetition penalty would keep the
# model from ending its list.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: Sequence[str], items: Sequence[Item], vocab_size: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of `vocab_size`, plus tokens for the titles and years of the items.

    A small model then writes an item as text in two tokens, and a title is the same token wherever it is mentioned.
    Titles with non-ASCII letters get no token, because a byte-level decoder would read such letters as bytes. Each year
    has a second token that includes the newline after it, so that a rank ends inside a token, as with `)\\n` in the
    vocabularies of large models. Every string survives a round trip.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )
    titles = sorted({item.title for item in items if item.title.isascii()})
    years = sorted({f" ({item.year})" for item in items if item.year is not None})
    fast.add_tokens([AddedToken(title, single_word=True, normalized=False) for title in titles])
    fast.add_tokens([AddedToken(year + end, normalized=False) for year in years for end in ("\n", "")])
    fast.chat_template = CHAT_TEMPLATE
    fast.padding_side = "left"
    return fast


def set_title_vectors(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, items: Sequence[Item], likes: sparse.csr_array
) -> None:
    """Set the embeddings of the title tokens from likes: dot products approximate the cosine similarity of two items.

    The vectors are `co_occurrence_vectors`. Titles without a token, and items that nobody liked, keep their random
    vectors. Items with the same title share its token; the last item sets the vector.

    Shape: likes (people, C), binary.
    """
    embeddings = model.model.embed_tokens.weight.data
    vectors = co_occurrence_vectors(likes, embeddings.shape[1])
    vocabulary = tokenizer.get_vocab()
    liked = np.asarray(likes.sum(axis=0)).ravel() > 0
    for item, is_liked, vector in zip(items, liked, vectors, strict=True):
        if is_liked and vector.any() and item.title in vocabulary:
            embeddings[vocabulary[item.title]] = torch.from_numpy(vector).to(embeddings)


def catalog_cards(catalog: Catalog) -> list[str]:
    """Return one text for each item: its line in a list, and its metadata."""
    return [f"{item}\n{'; '.join(_values(item))}" for item in catalog.items]


def catalog_pages(catalog: Catalog, num_pages: int, num_lines: int, seed: int) -> list[str]:
    """Return training texts that index the catalog: a heading of metadata values, then items that match it.

    A heading has one to three metadata values (or the decade) of a random item. The lines are the `num_lines` items
    that match most of them, each once, with ties in random order. The pages teach the model what a pretrained model
    knows: which items belong to which words, and that a list does not repeat itself. Items without metadata and year
    give no page.
    """
    rng = np.random.default_rng(seed)
    words = [[value for value in _values(item) if len(value) <= _LONGEST_HEADING] for item in catalog.items]
    values = [[*own, *_decade(item)] for own, item in zip(words, catalog.items, strict=True)]
    names = {value: column for column, value in enumerate(sorted(set().union(*values)))}
    cells = np.array([(row, names[value]) for row, own in enumerate(values) for value in set(own)]).reshape(-1, 2).T
    items_of = sparse.csc_array((np.ones(cells.shape[1], dtype=bool), cells), shape=(len(catalog), len(names)))
    pages = []
    for _ in range(num_pages):
        own = values[int(rng.integers(len(values)))]
        if not own:  # an item without metadata and year
            continue
        heading = [str(v) for v in rng.choice(own, size=min(len(own), int(rng.integers(1, 4))), replace=False)]
        columns = [names[value] for value in heading]
        having = [items_of.indices[items_of.indptr[c] : items_of.indptr[c + 1]] for c in columns]
        found, matches = np.unique(np.concatenate(having), return_counts=True)
        order = np.argsort(-(matches + rng.random(len(catalog))[found]), kind="stable")[:num_lines]
        lines = [str(catalog.items[i]) for i in found[order]]
        pages.append("\n".join([", ".join(heading), *lines]))
    return pages


def page_budget(num_items: int) -> int:
    """Return the number of index pages for a catalog: 12 for each item, at most 6000."""
    return min(12 * num_items, _MOST_PAGES)


def _decade(item: Item) -> list[str]:
    return [] if item.year is None else [f"{item.year // 10 * 10}s"]


def _values(item: Item) -> list[str]:
    return [value for text in item.metadata.values() for value in text.split(", ") if value]


def embedded_sizes(hidden_size: int, num_hidden_layers: int) -> dict[str, int]:
    """Return the sizes that `make_model` takes, with attention heads of size 32, which vLLM supports."""
    heads = hidden_size // 32
    sizes = {"hidden_size": hidden_size, "intermediate_size": 14 * hidden_size // 5}
    heads_of = {"num_attention_heads": heads, "num_key_value_heads": heads}
    return {**sizes, "num_hidden_layers": num_hidden_layers, **heads_of}


def make_model(tokenizer: PreTrainedTokenizerFast, *, hidden_size: int, seed: int, **sizes: Any) -> Qwen2ForCausalLM:
    """Return an untrained Qwen2 with tied embeddings; `sizes` are the other ones of `embedded_sizes`."""
    set_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        **sizes,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=hidden_size**-0.5,  # initial logits have standard deviation 1 at any width
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)
