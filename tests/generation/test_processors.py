import pytest
import torch
from transformers import LogitsProcessor

from convrec.data.catalog import Catalog
from convrec.data.parsing import parse_list
from convrec.generation.line_tokens import tokenize_lines
from convrec.generation.processors import CatalogConstraint
from convrec.generation.trie import CatalogTrie, ListRequest
from convrec.project.errors import InputError
from convrec.training.embedded import make_model
from tests.generation.small import sizes
from tests.generation.vocabularies import FILMS, TOKENIZERS, greedy_list

SIZES = sizes(heads=2)
LINES = [str(item) for item in FILMS]
PROMPTS = ["", "Alien 3, please", "a film"]  # of different lengths
REQUESTS = [ListRequest(4), ListRequest(1, banned=[0, 1, 2]), ListRequest(3, allowed=[1, 5, 9, 11, 13], banned=[5])]
KINDS = pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "embedded", "item_tokens"])


class _World:
    """A tiny random model in float64, where no two scores are as good as equal, and a batch padded on the left."""

    def __init__(self, kind: str, lines: list[str] = LINES, seed: int = 0):
        self.tokenizer = TOKENIZERS[kind]()
        self.model = make_model(self.tokenizer, **SIZES, seed=seed).double().eval()
        self.model.generation_config.pad_token_id = self.tokenizer.pad_token_id
        chats = [[{"role": "user", "content": text}] for text in PROMPTS]
        texts = [self.tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in chats]
        self.places = tokenize_lines(lines, self.tokenizer, "")
        self.trie = CatalogTrie.build(lines, self.tokenizer, "")
        options = {"padding": True, "padding_side": "left", "add_special_tokens": False, "return_tensors": "pt"}
        self.batch = self.tokenizer(texts, **options)
        self.batch.pop("token_type_ids", None)

    def generate(self, processor: LogitsProcessor, **options) -> torch.Tensor:
        longest = self.trie.longest(4)
        options = {"do_sample": False, "max_new_tokens": longest, "logits_processor": [processor], **options}
        output = self.model.generate(**self.batch, **options)
        return output[:, self.batch["input_ids"].shape[1] :]

    def scores(self, row: int):
        prompt = self.batch["input_ids"][row][self.batch["attention_mask"][row].bool()].tolist()
        return lambda written: self.model(torch.tensor([prompt + written])).logits[0, -1].tolist()


@KINDS
def test_greedy_lists_equal_those_of_a_plain_loop(kind):
    world = _World(kind)
    completions = world.generate(CatalogConstraint(world.trie, REQUESTS)).tolist()
    eos, pad = world.tokenizer.eos_token_id, world.tokenizer.pad_token_id
    for row, request in enumerate(REQUESTS):
        with torch.no_grad():
            written, chosen = greedy_list(world.places, request, eos, world.scores(row))
        assert completions[row][: len(written)] == written
        assert set(completions[row][len(written) :]) <= {pad}
        text = world.tokenizer.decode(completions[row], skip_special_tokens=True)
        assert [entry and entry.index for entry in parse_list(text, Catalog(FILMS))] == chosen


def test_sampled_lists_obey_the_request_of_their_prompt():
    world = _World("embedded")
    torch.manual_seed(0)
    repeated = [request for request in REQUESTS for _ in range(5)]
    completions = world.generate(CatalogConstraint(world.trie, repeated), do_sample=True, num_return_sequences=5)
    texts = world.tokenizer.batch_decode(completions, skip_special_tokens=True)
    assert len(set(texts)) > 10
    for row, text in enumerate(texts):
        request = REQUESTS[row // 5]
        items = [LINES.index(line) for line in text.split("\n")]
        assert len(set(items)) == len(items) == request.length
        assert not set(items) & set(request.banned) and set(items) <= set(request.allowed or range(len(LINES)))


class _Forced(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([7]), 0.0)


def test_what_it_cannot_do_is_refused():
    world = _World("embedded")
    processor = CatalogConstraint(world.trie, REQUESTS)
    world.generate(processor)
    with pytest.raises(ValueError, match="make a new one"):
        world.generate(processor)
    with pytest.raises(ValueError, match="2 requests, but generate has 3 rows"):
        world.generate(CatalogConstraint(world.trie, REQUESTS[:2]))
    with pytest.raises(ValueError, match="row 0 was given a token that is not allowed"):
        world.generate(
            CatalogConstraint(world.trie, REQUESTS),
            logits_processor=[CatalogConstraint(world.trie, REQUESTS), _Forced()],
        )
    with pytest.raises(InputError, match="a list of 30 items"):
        CatalogConstraint(world.trie, [ListRequest(2), ListRequest(30)])
