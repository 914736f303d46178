from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from convrec.data.catalog import Catalog, Item
from convrec.data.parsing import format_list, parse_list
from convrec.data.schemas import spooled
from convrec.data.sources.source import Source
from convrec.generation.allowed_tokens import AllowedTokens, allowed_tokens
from convrec.generation.constraint import ConstraintState
from convrec.generation.line_tokens import completion_tokens, item_token, tokenize_lines
from convrec.generation.prompt_tokens import generation_prompt
from convrec.generation.trie import CatalogTrie, ListRequest, catalog_trie, require_length
from convrec.project.errors import InputError
from tests.generation.vocabularies import FILMS, TOKENIZERS, embedded, greedy_list
from tests.rows import make_row

KINDS = pytest.mark.parametrize("kind", sorted(TOKENIZERS))
LINES = [str(item) for item in FILMS]


def _sized(tokenizer) -> int:
    return len(tokenizer) + 3  # models have rows beyond their tokenizer's


def _noise(seed: int, vocab_size: int):
    """Return scores by the number of tokens written."""

    def scores(written: list[int]) -> np.ndarray:
        return np.random.default_rng([seed, len(written)]).random(vocab_size)

    return scores


def _decode(trie: CatalogTrie, requests: list[ListRequest], vocab_size: int, seed: int) -> torch.Tensor:
    """Return the greedy lists (B, T) of `_noise`, one seed a row, with what comes behind their ends."""
    state = ConstraintState(trie, requests, vocab_size)
    columns: list[torch.Tensor] = []
    for step in range(trie.longest(max(request.length for request in requests)) + 2):
        scores = np.stack([_noise(seed + row, vocab_size)([0] * step) for row in range(len(requests))])
        columns.append(state.mask_(torch.from_numpy(scores)).argmax(dim=1))
        state.advance(columns[-1])
    assert not state.lost.any()
    return torch.stack(columns, dim=1)


def _allowed(state: ConstraintState, rows: torch.Tensor | None = None) -> torch.Tensor:
    """Return the next tokens that the mask allows, as booleans (B, vocab)."""
    scores = torch.zeros(len(state.lost if rows is None else rows), state._bias.shape[1])
    return state.mask_(scores, rows).isfinite()


@KINDS
def test_lines_are_cut_out_of_lists_as_the_tokenizer_writes_them(kind):
    tokenizer = TOKENIZERS[kind]()
    prompt = generation_prompt(tokenizer)
    rows = tokenize_lines(LINES, tokenizer, prompt)
    begin = len(tokenizer(prompt, add_special_tokens=False).input_ids)
    draw = np.random.default_rng(0)
    agree = 0
    for _ in range(30):
        chosen = draw.permutation(len(LINES))[: draw.integers(1, 6)].tolist()
        text = format_list([LINES[i] for i in chosen])
        written = [rows[i][2 * (k > 0) + (k == len(chosen) - 1)] for k, i in enumerate(chosen)]
        tokens = [token for line in written for token in line]
        end = "" if item_token(LINES[chosen[-1]], tokenizer) is None else "\n"
        assert tokenizer.decode(tokens, skip_special_tokens=True) == text + end
        agree += tokens == tokenizer(prompt + text + end, add_special_tokens=False).input_ids[begin:]
        assert completion_tokens(text, tokenizer, prompt) == [*tokens, tokenizer.eos_token_id] or kind == "spanning"
    assert agree == 30 or kind == "spanning"  # where a token holds the ends of two lines, each is written alone


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ([], "no item"),
        (["Up", "Heat", "Up"], "items 0 and 2"),
        (["Up", ""], "item 1"),
        (["Up\nHeat"], "without newlines"),
        (["Up", "The <|end|> (1970)"], "The <|end|>"),
    ],
)
def test_lines_that_cannot_be_written_are_named(lines, named):
    with pytest.raises(InputError, match=named.replace("|", r"\|")):
        CatalogTrie.build(lines, embedded())


def test_a_tokenizer_that_changes_a_title_is_told():
    tokenizer = TOKENIZERS["byte_level"].__wrapped__()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    with pytest.raises(InputError, match=r"Ame\u0301lie \(2003\)'(?!.*more)"):
        CatalogTrie.build([line for line in LINES if line != "Amélie (2001)"], tokenizer)


def test_compatible_titles_suit_a_tokenizer_that_writes_nothing_else():
    tokenizer = TOKENIZERS["byte_level"].__wrapped__()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    films = Catalog([Item("Alien³", 1992), Item("8½", 1963), Item("Heat（1995）", None), Item("Up", 2009, own_id="7")])
    with pytest.raises(InputError, match=r"catalog item 'Alien³ \(1992\)', .*; set data.title_form = NFKC"):
        catalog_trie(films, tokenizer)
    rows = [make_row("p", [("Alien³", 1992)], seen_titles=["8½ (1963)", "Up"], disliked_titles=["8½ (1963)"])]
    catalog, (row,), _ = Source(films, spooled(rows)).compatible()
    assert [str(item) for item in catalog.items] == ["Alien3 (1992)", "81⁄2 (1963)", "Heat (1995)", "Up (2009)"]
    assert catalog.items[3] is films.items[3] and catalog.find("Alien³", 1992) == 0
    assert catalog.indices_of_titles(row["seen_titles"]) == {1, 3} and row["disliked_titles"] == ["81⁄2 (1963)"]
    catalog_trie(catalog, tokenizer)


def test_what_is_allowed_in_a_small_catalog():
    """Title and year are a token each; the year has a second token with its newline."""
    tokenizer = embedded()
    trie = CatalogTrie.build(["Heat (1995)", "Alien (1979)", "Alien 3 (1992)"], tokenizer)
    heat, alien, alien_3, y1995, y1979, y1992, y1995_n, y1979_n = tokenizer.convert_tokens_to_ids(
        ["Heat", "Alien", "Alien 3", " (1995)", " (1979)", " (1992)", " (1995)\n", " (1979)\n"]
    )
    assert trie.longest(2) == 5  # two tokens for a line, and the EOS
    state = ConstraintState(trie, [ListRequest(2), ListRequest(1, banned=[0])], len(tokenizer))
    expected = [
        ({heat, alien, alien_3}, {alien, alien_3}, heat, alien_3),
        ({y1995_n}, {y1992}, y1995_n, y1992),
        ({alien, alien_3}, {tokenizer.eos_token_id}, alien, tokenizer.eos_token_id),
        ({y1979}, {tokenizer.eos_token_id, tokenizer.pad_token_id}, y1979, tokenizer.pad_token_id),
    ]
    for *allowed, first, second in expected:
        assert [set(row.nonzero().squeeze(1).tolist()) for row in _allowed(state)] == allowed
        state.advance(torch.tensor([first, second]))
    assert y1979_n not in _allowed(state)[0].nonzero()
    assert not state.lost.any()
    state.advance(torch.tensor([heat, tokenizer.eos_token_id]))
    assert state.lost.tolist() == [True, False]


@st.composite
def _tasks(draw):
    items = draw(st.lists(st.sampled_from(FILMS), min_size=1, max_size=12, unique=True))
    requests = []
    for _ in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, len(items)))
        order = draw(st.permutations(range(len(items))))
        banned = order[: draw(st.integers(0, len(items) - length))]
        rest = [i for i in order if i not in banned]
        allowed = draw(st.sampled_from([None, rest[:length], [*rest[:length], *banned]]))
        requests.append(ListRequest(length, banned, allowed))
    return items, requests, draw(st.integers(0, 2**31))


@KINDS
@settings(max_examples=40)
@given(task=_tasks())
def test_lists_equal_those_of_a_plain_loop(kind, task):
    items, requests, seed = task
    tokenizer = TOKENIZERS[kind]()
    lines = [str(item) for item in items]
    places = tokenize_lines(lines, tokenizer, generation_prompt(tokenizer))
    trie = CatalogTrie.build(lines, tokenizer)
    completions = _decode(trie, requests, _sized(tokenizer), seed)
    catalog = Catalog(items)
    for row, (request, completion) in enumerate(zip(requests, completions.tolist(), strict=True)):
        written, chosen = greedy_list(places, request, tokenizer.eos_token_id, _noise(seed + row, _sized(tokenizer)))
        assert completion[: len(written)] == written
        assert set(completion[len(written) :]) <= {tokenizer.eos_token_id, tokenizer.pad_token_id}
        text = tokenizer.decode(completion, skip_special_tokens=True)
        assert text.removesuffix("\n") == format_list([lines[i] for i in chosen])
        assert [entry and entry.index for entry in parse_list(text, catalog)] == chosen
        assert len(set(chosen)) == request.length and not set(chosen) & set(request.banned)
        assert len(written) <= trie.longest(request.length)


@KINDS
@settings(max_examples=20)
@given(task=_tasks())
def test_what_was_allowed_at_each_step_can_be_told_afterwards(kind, task):
    items, requests, seed = task
    tokenizer = TOKENIZERS[kind]()
    trie = CatalogTrie.build([str(item) for item in items], tokenizer)
    vocab_size = _sized(tokenizer)
    completions = _decode(trie, requests, vocab_size, seed)
    is_end = completions == tokenizer.eos_token_id
    mask = is_end.cumsum(1) - is_end.long() == 0
    mask[0, 3:] = False  # a list that was cut off
    found = allowed_tokens(trie, requests, completions.numpy(), mask.numpy())
    parts = [found.rows(slice(i, i + 1)) for i in range(len(requests))]
    assert torch.equal(AllowedTokens.stack(parts, completions.shape[1]).booleans(), found.booleans())
    state = ConstraintState(trie, requests, vocab_size)
    for t in range(completions.shape[1]):
        allowed = _allowed(state)
        assert torch.equal(found.booleans()[:, t], allowed[:, torch.from_numpy(trie.alphabet)] | ~mask[:, t, None])
        assert int(allowed.sum()) == int(allowed[:, torch.from_numpy(trie.alphabet)].sum()), "others are not allowed"
        state.advance(completions[:, t])


@pytest.mark.parametrize(
    ("chosen", "request_", "is_refused"),
    [
        ((0, 1, 2), ListRequest(3), False),
        ((0, 1, 2), ListRequest(2), True),
        ((0, 1, 2), ListRequest(3, [2]), True),
        ((0, 1, 0), ListRequest(3), True),
    ],
)
def test_a_completion_of_another_request_is_refused(chosen, request_, is_refused):
    tokenizer = embedded()
    texts = ["\n".join(LINES[i] for i in items) + tokenizer.eos_token for items in ((0, 1, 2), chosen)]
    ids = np.array(tokenizer(texts).input_ids)
    trie = CatalogTrie.build(LINES, tokenizer)
    with pytest.raises(ValueError, match="completion 1") if is_refused else nullcontext():
        allowed_tokens(trie, [ListRequest(3), request_], ids, np.ones_like(ids, dtype=bool))


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (ListRequest(0), "list of 0 items"),
        (ListRequest(19, banned=range(2)), "list of 19 items is asked for, and 18 of the catalog's 20"),
        (ListRequest(3, allowed=[4, 5, 6], banned=[5]), "list of 3 items is asked for, and 2 of"),
        (ListRequest(1, banned=[20]), "banned: 20"),
        (ListRequest(1, allowed=[-1]), "allowed: -1"),
    ],
)
def test_requests_that_cannot_be_met_are_refused(request_, named):
    trie = CatalogTrie.build(LINES, embedded())
    with pytest.raises(InputError, match=named):
        ConstraintState(trie, [ListRequest(1), request_], len(embedded()))


def test_a_model_of_another_vocabulary_is_refused():
    trie = CatalogTrie.build(LINES, embedded())
    with pytest.raises(InputError, match="vocabulary of 5 tokens"):
        ConstraintState(trie, [ListRequest(1)], 5)


def test_a_saved_trie_is_the_same(tmp_path):
    trie = CatalogTrie.build(LINES, embedded())
    trie.save(tmp_path / "trie.safetensors")
    again = CatalogTrie.load(tmp_path / "trie.safetensors")
    requests = [ListRequest(5, banned=[1, 2])] * 3
    size = _sized(embedded())
    assert torch.equal(_decode(trie, requests, size, 7), _decode(again, requests, size, 7))


def test_rows_take_turns_and_leave_others_alone():
    """Lists that begin in freed rows, as a server's do, are those of a batch of their own."""
    trie = CatalogTrie.build(LINES, TOKENIZERS["byte_level"]())
    size = _sized(TOKENIZERS["byte_level"]())
    state = ConstraintState(trie, [ListRequest(1), ListRequest(2)], size)
    alone = ConstraintState(trie, [ListRequest(2)], size)
    newcomer = ListRequest(3, allowed=[4, 5, 6])
    later = ConstraintState(trie, [newcomer], size)
    first, second = torch.tensor([0]), torch.tensor([1])
    for step in range(12):
        if step == 4:
            state.put(first, [newcomer])
        token = _allowed(state, second).int().argmax(dim=1)
        assert torch.equal(_allowed(state, second), _allowed(alone))
        state.advance(token, second)
        alone.advance(token)
        if step >= 4:
            assert torch.equal(_allowed(state, first), _allowed(later))
            token = _allowed(later).int().argmax(dim=1)
            later.advance(token)
            state.advance(token, first)


def test_constrained_lists_that_cannot_be_whole_are_refused():
    trie = catalog_trie(Catalog([item for item in FILMS if str(item).isascii()]), embedded())
    longest = trie.longest(5)
    require_length("common.max_completion_length", longest, trie, 5)
    with pytest.raises(InputError, match=f"common.max_completion_length = {longest - 1}: .* set it to {longest} or"):
        require_length("common.max_completion_length", longest - 1, trie, 5)
