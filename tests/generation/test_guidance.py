"""Guided lists: the probability of every list of a tiny catalog, by the constraint and by a plain loop."""

import math

import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from convrec.generation.allowed_tokens import AllowedTokens, allowed_tokens
from convrec.generation.constraint import ConstraintState
from convrec.generation.device_state import DeviceState
from convrec.generation.line_tokens import tokenize_lines
from convrec.generation.processors import CatalogConstraint
from convrec.generation.prompt_tokens import generation_prompt
from convrec.generation.trie import DONE, CatalogTrie, ListRequest, LogWeights
from convrec.project.errors import InputError
from convrec.training.embedded import make_model
from convrec.training.rl.logprobs import sampled_log_probs
from tests.generation.small import sizes
from tests.generation.vocabularies import FILMS, TOKENIZERS, by_item, log_weights

KINDS = pytest.mark.parametrize("kind", sorted(TOKENIZERS))
LINES = ["Alien (1979)", "Alien", "Alien 3 (1992)", "Heat (1995)", "Up (2009)"]  # the beginnings of others, and others
REQUESTS = [
    ListRequest(2, log_weights=log_weights({1: 2.0, 2: -1.5, 3: 0.5})),
    ListRequest(2, banned=[0], log_weights=log_weights({0: 9.0, 4: 1.0})),
    ListRequest(1, allowed=[0, 2, 4], log_weights=log_weights({2: 3.0, 3: 50.0})),
    ListRequest(2),
    ListRequest(3, banned=[4], log_weights=log_weights(dict.fromkeys(range(5), 1.3))),
]
PENALTY, TEMPERATURE = 1.4, 0.8


class _Tiny:
    """A tokenizer, a trie, and logits that depend on all tokens written so far."""

    def __init__(self, kind: str):
        self.tokenizer = TOKENIZERS[kind]()
        context = generation_prompt(self.tokenizer)
        self.places = tokenize_lines(LINES, self.tokenizer, context)
        self.trie = CatalogTrie.build(LINES, self.tokenizer)
        self.vocab = len(self.tokenizer) + 3
        self.prompt = self.tokenizer("Heat " + context, add_special_tokens=False).input_ids

    def logits(self, written: tuple[int, ...]) -> torch.Tensor:
        drawn = np.random.default_rng([7, *written]).normal(size=self.vocab)
        return torch.from_numpy(drawn)

    def penalized(self, written: tuple[int, ...]) -> torch.Tensor:
        ids = torch.tensor([[*self.prompt, *written]])
        return RepetitionPenaltyLogitsProcessor(PENALTY)(ids, self.logits(written)[None].clone())[0]


def _plain_lists(tiny: _Tiny, request: ListRequest) -> dict[tuple[int, ...], float]:
    """Return the probability of each list by its tokens: model times mean weight, token by token."""
    eos, weights = tiny.tokenizer.eos_token_id, by_item(request.log_weights)

    def lines_of(chosen: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
        last = len(chosen) == request.length - 1
        allowed = range(len(LINES)) if request.allowed is None else request.allowed
        rows = {i: tiny.places[i][2 * bool(chosen) + last] for i in allowed}
        return {i: (*row, eos) if last else row for i, row in rows.items() if i not in {*chosen, *request.banned}}

    found: dict[tuple[int, ...], float] = {}

    def go_on(chosen: tuple[int, ...], before: tuple[int, ...], begun: tuple[int, ...], probability: float) -> None:
        below = {i: row for i, row in lines_of(chosen).items() if row[: len(begun)] == begun}
        done = [i for i, row in below.items() if row == begun]
        if done:
            after = (*chosen, *done)
            if len(after) == request.length:
                found[before + begun] = probability
            else:
                go_on(after, before + begun, (), probability)
            return
        scores = tiny.penalized(() if tiny.trie.is_one_pass else before + begun)
        masses = {}
        for token in {row[len(begun)] for row in below.values()}:
            own = [math.exp(weights.get(i, 0.0)) for i, row in below.items() if row[len(begun)] == token]
            masses[token] = math.exp((float(scores[token]) + math.log(sum(own) / len(own))) / TEMPERATURE)
        for token, mass in masses.items():
            go_on(chosen, before, (*begun, token), probability * mass / sum(masses.values()))

    go_on((), (), (), 1.0)
    return found


@KINDS
@pytest.mark.parametrize("number", range(len(REQUESTS)))
def test_the_probability_of_every_list_is_that_of_a_plain_loop(kind, number):
    tiny, request = _Tiny(kind), REQUESTS[number]
    expected = _plain_lists(tiny, request)
    open_items = len([i for i in request.allowed or range(len(LINES)) if i not in request.banned])
    assert len(expected) == math.perm(open_items, request.length)
    assert sum(expected.values()) == pytest.approx(1)
    lists = list(expected)
    width = max(map(len, lists))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in lists])
    mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in lists])
    logits = torch.stack([torch.stack([tiny.logits(row[:t]) for t in range(width)]) for row in lists])
    logits = logits[:, :1].expand_as(logits) if tiny.trie.is_one_pass else logits

    state = ConstraintState(tiny.trie, [request] * len(lists), tiny.vocab)  # step by step
    total = torch.zeros(len(lists), dtype=torch.float64)
    for t in range(width):
        scores = torch.stack([tiny.penalized(row[:t]) for row in lists])
        logs = (state.mask_(scores) / TEMPERATURE).log_softmax(1)
        total += torch.where(mask[:, t], logs.gather(1, ids[:, t, None])[:, 0], 0)
        state.advance(torch.where(mask[:, t], ids[:, t], tiny.tokenizer.eos_token_id))
    torch.testing.assert_close(total.exp().tolist(), list(expected.values()), rtol=1e-6, atol=1e-9)

    found = allowed_tokens(tiny.trie, [request] * len(lists), ids.numpy(), mask.numpy())  # all at once
    parts = [found.rows(slice(i, i + 1)) for i in range(len(lists))]
    for own in (found, AllowedTokens.stack(parts, width)):
        allowed = own.booleans(vocab=tiny.vocab)
        whole = torch.tensor([[*tiny.prompt] for _ in lists])
        scored, _ = sampled_log_probs(
            logits,
            torch.cat([whole, ids], 1),
            PENALTY,
            TEMPERATURE,
            allowed | ~mask[:, :, None],
            guidance=own.guidance("cpu", tiny.vocab),
        )
        sums = scored.masked_fill(~mask, 0).sum(1).exp().tolist()
        torch.testing.assert_close(sums, list(expected.values()), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["byte_level", "embedded"])
def test_generation_samples_the_guided_distribution(kind):
    """Frequencies of 4,000 lists, under a repetition penalty and a temperature, as transformers orders them."""
    tiny = _Tiny(kind)
    model = make_model(tiny.tokenizer, **sizes(heads=2), seed=0).double().eval()
    model.generation_config.pad_token_id = tiny.tokenizer.pad_token_id
    tiny.logits = lambda written: model(torch.tensor([[*tiny.prompt, *written]])).logits[0, -1]  # type: ignore[method-assign]
    number, request = 4000, REQUESTS[0]
    torch.manual_seed(0)
    with torch.no_grad():
        expected = _plain_lists(tiny, request)
        output = model.generate(
            torch.tensor([tiny.prompt]).repeat(number, 1),
            generation_config=GenerationConfig(
                do_sample=True,
                temperature=TEMPERATURE,
                top_k=0,
                repetition_penalty=PENALTY,
                max_new_tokens=tiny.trie.longest(2),
                eos_token_id=tiny.tokenizer.eos_token_id,
                pad_token_id=tiny.tokenizer.pad_token_id,
            ),
            logits_processor=[CatalogConstraint(tiny.trie, [request] * number)],
        )
    texts = tiny.tokenizer.batch_decode(output[:, len(tiny.prompt) :], skip_special_tokens=True)
    for tokens, probability in expected.items():
        share = texts.count(tiny.tokenizer.decode(tokens, skip_special_tokens=True)) / number
        assert abs(share - probability) < 4 * math.sqrt(probability * (1 - probability) / number) + 1 / number


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        *((log_weights({item: log}), name) for item, log, name in ((5, 1.0, "log_weights: 5"), (-1, 0.0, "-1"))),
        *((log_weights({0: log}), str(log)) for log in (math.nan, 101.0)),
        *((LogWeights(np.array(items), np.zeros(2)), "its items do not ascend") for items in ([3, 1], [2, 2])),
    ],
)
def test_weights_that_cannot_be_are_refused(weights, named):
    with pytest.raises(InputError, match=named):
        _Tiny("embedded").trie.check([ListRequest(1, log_weights=weights)])


@KINDS
@pytest.mark.parametrize("seed", range(20))
def test_the_state_on_a_device_takes_the_tokens_of_the_state_on_the_cpu(kind, seed):
    """The same scores, guided and not, until all lists have ended."""
    rng = np.random.default_rng(seed)
    films = [str(item) for item in FILMS[: rng.integers(2, len(FILMS) + 1)]]
    trie, vocab = CatalogTrie.build(films, TOKENIZERS[kind]()), len(TOKENIZERS[kind]()) + 3
    requests = []
    for _ in range(5):
        order = rng.permutation(len(films)).tolist()
        length, banned = int(rng.integers(1, len(films))), order[:1]
        allowed = [None, order[: length + 1]][rng.integers(2)]
        drawn = dict(zip(order, rng.normal(scale=3, size=rng.integers(len(films) + 1)), strict=False))
        requests.append(ListRequest(length, banned, allowed, log_weights(drawn)))
    state, own = ConstraintState(trie, requests, vocab), DeviceState(trie, requests, torch.device("cpu"))
    longest = max(map(len, TOKENIZERS[kind]()(films).input_ids)) + 2
    scores = torch.from_numpy(rng.normal(size=(5, vocab)))
    while not state.is_done:
        scores = scores if trie.is_one_pass else torch.from_numpy(rng.normal(size=(5, vocab)))
        edges = own.choose(scores)
        written = state.jump(state.mask_(scores.clone()).argmax(1).tolist())
        tokens, held = own.tokens(*own.jump(edges), longest)
        assert [row[is_own].tolist() for row, is_own in zip(tokens, held, strict=True)] == written
    assert (own.nodes == DONE).all()
