"""The catalog constraint in vLLM's engine, which runs in a process of its own, through vLLM's CPU build."""

import json

import pytest
import torch
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from convrec.generation.line_tokens import tokenize_lines
from convrec.generation.trie import CatalogTrie, ListRequest
from convrec.generation.vllm_requests import request_options
from convrec.training.embedded import make_model
from tests.generation.small import sizes
from tests.generation.vocabularies import FILMS, TOKENIZERS, greedy_list, log_weights

SIZES, PENALTY = sizes(64, 64, heads=2), 1.6
LINES = [str(item) for item in FILMS]
PROMPTS = ["", "Alien 3, please", "a film", "heat", "dogs and pigs", "one more", "300"]
REQUESTS = [ListRequest(4), ListRequest(1, banned=[0, 1, 2]), None]
REQUESTS += [ListRequest(3, allowed=[1, 5, 9, 11, 13], banned=[5]), ListRequest(6, banned=list(range(12)))]
REQUESTS += [ListRequest(2), ListRequest(5, log_weights=log_weights({0: 3.0, 7: 2.5, 8: -2.0, 12: 0.5}))]


NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
# Too few blocks for three lists: some are interrupted. Fewer tokens a step than a prompt has: it is read in parts.
NARROW = {"num_gpu_blocks_override": 7, "max_num_seqs": 3, "max_num_batched_tokens": 24}
WIDE = {"max_num_seqs": 256, "max_num_batched_tokens": 16_384}


@pytest.mark.parametrize(
    ("engine", "copies"),
    [
        pytest.param(NARROW, 1, marks=pytest.mark.slow),  # CI runs one test of vLLM
        pytest.param({**NARROW, "speculative_config": NGRAM}, 1, marks=pytest.mark.nightly),
        pytest.param(WIDE, 40, marks=pytest.mark.nightly),
    ],
)
def test_vllm_writes_the_lists_of_a_plain_loop(run_module, tmp_path, engine, copies):
    """Seven requests, one of them free, three at a time, or copies of them together: as the model alone would write."""
    tokenizer = TOKENIZERS["byte_level"]()
    model = make_model(tokenizer, **SIZES, seed=0).eval()
    model.save_pretrained(tmp_path / "model")
    trie = CatalogTrie.build(LINES, tokenizer)
    trie.save(tmp_path / "trie.safetensors")
    chats = [[{"role": "user", "content": text}] for text in PROMPTS]
    texts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    prompts = tokenizer(texts, add_special_tokens=False).input_ids
    task = {
        "prompts": prompts * copies,
        "requests": [request and request_options(request) for request in REQUESTS] * copies,
        "penalty": PENALTY,  # of constrained lists
        "engine": engine,
        "max_tokens": trie.longest(6),
        "eos": tokenizer.eos_token_id,
        "vocab_size": len(tokenizer),
    }
    (tmp_path / "task.json").write_text(json.dumps(task))
    files = {"model": "model", "trie": "trie.safetensors", "task": "task.json", "output": "lists.json"}
    options = [part for name, file in files.items() for part in (f"--{name}", tmp_path / file)]
    run_module("tests.generation.constrained_vllm", *options)
    found = json.loads((tmp_path / "lists.json").read_text())
    assert found["compared"] > 300
    counts = found["counts"]
    assert "min_tokens" in found["refusal"] and (counts["num_preemptions"] > 0) == (engine != WIDE)
    if "speculative_config" in engine:
        assert 0 < counts["spec_decode_num_accepted_tokens"] < counts["spec_decode_num_draft_tokens"]
    places = tokenize_lines(LINES, tokenizer, "")
    for place, (prompt, request) in enumerate(zip(prompts, REQUESTS, strict=True)):
        with torch.no_grad():
            if request is None:
                expected = _free_list(model, prompt, tokenizer.eos_token_id, task["max_tokens"])
            else:
                expected, _ = greedy_list(
                    places,
                    request,
                    tokenizer.eos_token_id,
                    lambda written, prompt=prompt: _scores(model, prompt, written),
                )
        assert found["lists"][place :: len(prompts)] == [expected] * copies


def _scores(model, prompt: list[int], written: list[int]) -> list[float]:
    ids = torch.tensor([prompt + written])
    logits = model(ids).logits[:, -1]
    return RepetitionPenaltyLogitsProcessor(PENALTY)(ids, logits)[0].tolist()


def _free_list(model, prompt: list[int], eos: int, max_tokens: int) -> list[int]:
    written: list[int] = []
    while len(written) < max_tokens and written[-1:] != [eos]:
        written.append(int(model(torch.tensor([prompt + written])).logits[0, -1].argmax()))
    return written
