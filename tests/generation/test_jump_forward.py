"""Jump-forward decoding writes the lists that decoding token by token writes, in fewer forward passes."""

import math
from collections import Counter

import pytest
import torch

from convrec.generation import jump_forward
from convrec.generation.jump_forward import can_jump, write_lists
from convrec.generation.processors import CatalogConstraint
from convrec.generation.trie import CatalogTrie, ListRequest
from convrec.training.embedded import make_model
from tests.generation.small import sizes
from tests.generation.vocabularies import TOKENIZERS, SmallWorld, log_weights
from tests.training.rl.ragged import small_model

LINES = ["Alien (1979)", "Alien", "Alien 3 (1992)", "Heat (1995)", "Up (2009)"]  # the beginnings of others, and others
REQUESTS = [
    ListRequest(3, log_weights=log_weights({1: 2.0, 2: -1.5, 3: 0.5})),
    ListRequest(1, banned=[0]),
    ListRequest(5),
    ListRequest(2, allowed=[0, 2, 4], log_weights=log_weights({2: 3.0})),
]
PENALTY = 1.3


@pytest.fixture(scope="module", params=sorted(TOKENIZERS))
def small(request) -> SmallWorld:
    return SmallWorld(request.param, LINES)


@pytest.fixture(autouse=True, params=["cpu", "as on a GPU"])
def how(request, monkeypatch) -> None:
    """Decodes as on a CPU, and as on a GPU but for CUDA graphs."""
    monkeypatch.setattr(jump_forward, "_is_device", lambda _: request.param != "cpu")


def test_greedy_lists_are_those_of_generate(small):
    """Rows of several lengths, prompts that are repeated, and requests of their own."""
    prompts = [small.prompts[i] for i in (0, 0, 1, 2, 3, 3)]
    requests = [REQUESTS[i] for i in (0, 1, 1, 2, 3, 0)]
    expected = small.generate(prompts, CatalogConstraint(small.trie, requests), repetition_penalty=PENALTY)
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
    options = {"repetition_penalty": PENALTY, "do_sample": True, "temperature": 0.8}
    expected = small.generate(prompts, CatalogConstraint(small.trie, requests), **options)
    ours, theirs = (Counter(map(tuple, lists)) for lists in (written, expected))
    for tokens in ours | theirs:
        p, q = ours[tokens] / number, theirs[tokens] / number
        assert abs(p - q) < 4.5 * math.sqrt((p * (1 - p) + q * (1 - q)) / number) + 2 / number


def test_forced_tokens_need_no_pass_of_their_own(small, monkeypatch):
    passes, forward = [], small.model.forward
    monkeypatch.setattr(small.model, "forward", lambda *args, **kwargs: passes.append(1) or forward(*args, **kwargs))
    (tokens,) = write_lists(small.model, [[5]], small.trie, [ListRequest(5)])
    assert len(passes) <= max(5, 0.7 * len(tokens))


def test_models_whose_memory_has_an_order_decode_token_by_token():
    assert not can_jump(small_model("mistral", sliding_window=4))
