"""Jump-forward decoding writes the lists that decoding token by token writes, in fewer forward passes."""

import math
from collections import Counter

import pytest
import torch
from transformers import GenerationConfig, MistralConfig, MistralForCausalLM

from convrec.generation import jump_forward
from convrec.generation.jump_forward import can_jump, pad_prompts, write_lists
from convrec.generation.processors import CatalogConstraint
from convrec.generation.prompt_tokens import generation_prompt
from convrec.generation.trie import CatalogTrie, ListRequest
from convrec.training.embedded import make_model
from tests.generation.small import sizes
from tests.generation.vocabularies import TOKENIZERS, log_weights

LINES = ["Alien (1979)", "Alien", "Alien 3 (1992)", "Heat (1995)", "Up (2009)"]  # the beginnings of others, and others
REQUESTS = [
    ListRequest(3, log_weights=log_weights({1: 2.0, 2: -1.5, 3: 0.5})),
    ListRequest(1, banned=[0]),
    ListRequest(5),
    ListRequest(2, allowed=[0, 2, 4], log_weights=log_weights({2: 3.0})),
]
PENALTY = 1.3


class _Small:
    """A model, a trie and prompts of several lengths."""

    def __init__(self, kind: str):
        self.tokenizer = TOKENIZERS[kind]()
        self.trie = CatalogTrie.build(LINES, self.tokenizer)
        self.model = make_model(self.tokenizer, **sizes(heads=2), seed=0).double().eval()
        texts = ["Heat ", "a ", "Alien and Up, or Heat, and one more of them ", "Up "]
        context = generation_prompt(self.tokenizer)
        self.prompts = [self.tokenizer(text + context, add_special_tokens=False).input_ids for text in texts]

    def generate(self, prompts: list[list[int]], requests: list[ListRequest], **options) -> list[list[int]]:
        """Return the tokens of transformers' lists, token by token."""
        end = self.tokenizer.eos_token_id
        ids, mask = pad_prompts(prompts, "cpu")
        settings = {"max_new_tokens": self.trie.longest(5), "repetition_penalty": PENALTY, "top_k": 0, **options}
        output = self.model.generate(
            ids,
            attention_mask=mask,
            generation_config=GenerationConfig(eos_token_id=end, pad_token_id=end, **settings),
            logits_processor=[CatalogConstraint(self.trie, requests)],
        )
        rows = output[:, ids.shape[1] :].tolist()
        return [row[: row.index(end) + 1] for row in rows]


@pytest.fixture(scope="module", params=sorted(TOKENIZERS))
def small(request) -> _Small:
    return _Small(request.param)


@pytest.fixture(autouse=True, params=["cpu", "as on a GPU"])
def how(request, monkeypatch) -> None:
    """Decodes as on a CPU, and as on a GPU but for CUDA graphs."""
    monkeypatch.setattr(jump_forward, "_is_device", lambda _: request.param != "cpu")


def test_greedy_lists_are_those_of_generate(small):
    """Rows of several lengths, prompts that are repeated, and requests of their own."""
    prompts = [small.prompts[i] for i in (0, 0, 1, 2, 3, 3)]
    requests = [REQUESTS[i] for i in (0, 1, 1, 2, 3, 0)]
    expected = small.generate(prompts, requests, do_sample=False)
    assert write_lists(small.model, prompts, small.trie, requests, penalty=PENALTY) == expected


def test_a_jump_may_be_longer_than_the_prompt():
    """The widest pass reads more tokens than the prompt and the list have, rounded up."""
    tokenizer = TOKENIZERS["byte_level"]()
    long = "Alien " + "or how a very long title begins, goes on, and comes to its end " * 3
    lines = [f"{long}(1979)", f"{long}again (1979)"]
    trie = CatalogTrie.build(lines, tokenizer)
    model = make_model(tokenizer, **sizes(heads=2), seed=0).double().eval()
    (written,) = write_lists(model, [tokenizer("a film").input_ids], trie, [ListRequest(1)])
    assert tokenizer.decode(written[:-1]) in lines


def test_sampled_lists_have_the_distribution_of_generate(small):
    number = 3000
    torch.manual_seed(0)
    prompts, requests = [small.prompts[0]] * number, [REQUESTS[0]] * number
    written = write_lists(small.model, prompts, small.trie, requests, penalty=PENALTY, temperature=0.8)
    ours, theirs = (
        Counter(map(tuple, lists))
        for lists in (written, small.generate(prompts, requests, do_sample=True, temperature=0.8))
    )
    for tokens in ours | theirs:
        p, q = ours[tokens] / number, theirs[tokens] / number
        assert abs(p - q) < 4.5 * math.sqrt((p * (1 - p) + q * (1 - q)) / number) + 2 / number


def test_forced_tokens_need_no_pass_of_their_own(small, monkeypatch):
    passes, forward = [], small.model.forward
    monkeypatch.setattr(small.model, "forward", lambda *args, **kwargs: passes.append(1) or forward(*args, **kwargs))
    (tokens,) = write_lists(small.model, [[5]], small.trie, [ListRequest(5)])
    assert len(passes) <= max(5, 0.7 * len(tokens))


def test_models_whose_memory_has_an_order_decode_token_by_token():
    model = MistralForCausalLM(MistralConfig(vocab_size=12, sliding_window=4, **sizes()))
    assert not can_jump(model)
