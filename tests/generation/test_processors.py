import pytest
import torch
from transformers import LogitsProcessor

from convrec.data.catalog import Catalog
from convrec.data.parsing import parse_list
from convrec.generation.line_tokens import tokenize_lines
from convrec.generation.processors import CatalogConstraint
from convrec.generation.prompt_tokens import generation_prompt
from convrec.generation.trie import ListRequest
from convrec.project.errors import InputError
from tests.generation.vocabularies import FILMS, TOKENIZERS, SmallWorld, greedy_list

LINES = [str(item) for item in FILMS]
REQUESTS = [ListRequest(4), ListRequest(1, banned=[0, 1, 2]), ListRequest(3, allowed=[1, 5, 9, 11, 13], banned=[5])]


@pytest.mark.parametrize("kind", sorted(TOKENIZERS))
def test_greedy_lists_equal_those_of_a_plain_loop(kind):
    world = SmallWorld(kind, LINES)
    places = tokenize_lines(LINES, world.tokenizer, generation_prompt(world.tokenizer))
    prompts = world.prompts[: len(REQUESTS)]
    completions = world.generate(prompts, CatalogConstraint(world.trie, REQUESTS))
    for prompt, request, completion in zip(prompts, REQUESTS, completions, strict=True):

        def scores(written: list[int], prompt: list[int] = prompt) -> list[float]:
            return world.model(torch.tensor([prompt + written])).logits[0, -1].tolist()

        with torch.no_grad():
            written, chosen = greedy_list(places, request, world.tokenizer.eos_token_id, scores)
        assert completion == written
        text = world.tokenizer.decode(completion, skip_special_tokens=True)
        assert [entry and entry.index for entry in parse_list(text, Catalog(FILMS))] == chosen


class _Forced(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([7]), 0.0)


def test_what_it_cannot_do_is_refused():
    world = SmallWorld("embedded", LINES)
    prompts, processor = world.prompts[: len(REQUESTS)], CatalogConstraint(world.trie, REQUESTS)
    world.generate(prompts, processor)
    with pytest.raises(ValueError, match="make a new one"):
        world.generate(prompts, processor)
    with pytest.raises(ValueError, match="2 requests, but generate has 3 rows"):
        world.generate(prompts, CatalogConstraint(world.trie, REQUESTS[:2]))
    with pytest.raises(ValueError, match="row 0 was given a token that is not allowed"):
        world.generate(prompts, CatalogConstraint(world.trie, REQUESTS), _Forced())
    with pytest.raises(InputError, match="a list of 30 items"):
        CatalogConstraint(world.trie, [ListRequest(2), ListRequest(30)])
