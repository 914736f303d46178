"""`python -m tests.generation.constrained_vllm`: vLLM's lists for a JSON file of prompts and requests, on a CPU.

Before it, the processor alone follows a random batch as vLLM's would change, against one state a list.
"""

import argparse
import json
import os
import random
from pathlib import Path
from types import SimpleNamespace

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}

import numpy as np  # noqa: E402
import torch  # noqa: E402
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.exceptions import VLLMValidationError  # noqa: E402
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext  # noqa: E402

from convrec.generation.constraint import ConstraintState  # noqa: E402
from convrec.generation.trie import CatalogTrie, ListRequest  # noqa: E402
from convrec.generation.vllm_constraint import VllmCatalogConstraint, engine_options  # noqa: E402
from convrec.generation.vllm_requests import request_options, requested_list  # noqa: E402
from tests.generation.vocabularies import log_weights  # noqa: E402

_masked_load = InterpreterBuilder.create_masked_load


def _load_with_any_mask(
    builder: InterpreterBuilder, pointers: TensorHandle, mask: TensorHandle, *others
) -> TensorHandle:
    return _masked_load(builder, pointers, TensorHandle(mask.data.astype(bool), mask.dtype), *others)


# Triton's interpreter refuses the integer mask of vLLM's n-gram speculation, which its compiler takes.
InterpreterBuilder.create_masked_load = _load_with_any_mask

SLOTS, STEPS, PROMPT = 5, 600, [1, 2]
GUIDED = ListRequest(2, log_weights=log_weights({1: 1.5, 3: -1.0}))
REQUESTS = [None, GUIDED, ListRequest(3, banned=[0, 4]), ListRequest(1, allowed=[2])]


class _Runner:
    """The slots of vLLM's runner, with what its processors see of them, and the processor."""

    def __init__(self, trie_file: Path, vocab_size: int):
        lengths = [SimpleNamespace(np=np.zeros(SLOTS, np.int32)) for _ in range(2)]
        self.max_num_reqs, self.vocab_size, (self.prompt_len, self.prefill_len) = SLOTS, vocab_size, lengths
        self.all_token_ids = SimpleNamespace(gpu=torch.zeros(SLOTS, STEPS, dtype=torch.int32))
        config = SimpleNamespace(additional_config=engine_options(trie_file)["additional_config"])
        self.processor = VllmCatalogConstraint(config, self)
        self.requests: dict[int, tuple[ListRequest | None, list[int]]] = {}  # by slot: with what is written

    def add(self, slot: int, request: ListRequest | None, written: list[int]) -> None:
        """Take a request, which may have written something before it was preempted."""
        self.requests[slot] = request, written
        self.prompt_len.np[slot], self.prefill_len.np[slot] = len(PROMPT), len(PROMPT) + len(written)
        self.processor.add_request(slot, SamplingParams(extra_args=request and request_options(request)))

    def apply(self, logits: torch.Tensor, rows: list[tuple[int, int, int, int]]) -> torch.Tensor:
        """Return the logits of these rows: slot, offset among the rows of its request, position, and token."""
        for slot, (_, written) in self.requests.items():
            self.all_token_ids.gpu[slot, : len(PROMPT) + len(written)] = torch.tensor(PROMPT + written)
        self.processor.apply_staged_writes()
        slots, offsets, positions, tokens = torch.tensor(rows).T
        batch = slots[offsets == 0]
        context = LogitsContext(slots, batch, batch.numpy(), offsets, tokens, positions, np.empty(0))
        return self.processor.apply(logits, context)


def follow_a_changing_batch(trie_file: Path, trie: CatalogTrie, vocab_size: int) -> int:
    """Return how many rows were compared; requests come, go and are preempted, and have drafts, some of them wrong."""
    draw, compared = random.Random(0), 0
    runner = _Runner(trie_file, vocab_size)
    for _ in range(STEPS):
        free = [slot for slot in range(SLOTS) if slot not in runner.requests]
        if len(free) < SLOTS and draw.random() < 0.2:
            gone = runner.requests.pop(draw.choice(list(runner.requests)))
            if free and draw.random() < 0.6:
                runner.add(draw.choice(free), *gone)
        elif free and draw.random() < 0.4:
            runner.add(draw.choice(free), draw.choice(REQUESTS), [])
        rows, scores, expected, sampled = [], [], [], {}
        for slot in draw.sample(sorted(runner.requests), len(runner.requests)):
            request, written = runner.requests[slot]
            tokens, is_right = list(written), True
            for offset in range(draw.choice([1, 1, 3])):
                rows.append((slot, offset, len(PROMPT) + len(tokens) - 1, [*PROMPT, *tokens][-1]))
                scores.append(torch.randn(vocab_size))
                expected.append(_alone(trie, request, tokens, scores[-1]) if is_right else None)
                if is_right:  # what vLLM samples here, after the drafts that it keeps
                    sampled[slot] = [*tokens, draw.choice(expected[-1].isfinite().nonzero().squeeze(1).tolist())]
                is_right &= draw.random() < 0.6
                tokens.append(sampled[slot][-1] if is_right else draw.randrange(vocab_size))
        if not rows:
            continue
        logits = runner.apply(torch.stack(scores), rows)
        for row, wanted in zip(logits, expected, strict=True):
            assert wanted is None or torch.equal(row, wanted)
            compared += wanted is not None
        for slot, written in sampled.items():
            runner.requests[slot] = runner.requests[slot][0], written
    return compared


def _alone(trie: CatalogTrie, request: ListRequest | None, tokens: list[int], scores: torch.Tensor) -> torch.Tensor:
    """Return the scores of one row by a state of its own."""
    if request is None:
        return scores
    state = ConstraintState(trie, [request], len(scores))
    for token in tokens:
        state.advance([token])
    assert not state.lost.any()
    return state.mask_(scores[None].clone())[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("model", "trie", "task", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    arguments = parser.parse_args()
    task = json.loads(arguments.task.read_text())
    trie = CatalogTrie.load(arguments.trie)
    compared = follow_a_changing_batch(arguments.trie, trie, task["vocab_size"])
    llm = LLM(
        str(arguments.model),
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        max_model_len=160,
        block_size=32,
        disable_log_stats=False,
        generation_config="vllm",
        **task["engine"],
        **engine_options(arguments.trie),
    )
    requests = [request and requested_list(request) for request in task["requests"]]
    params = [
        SamplingParams(
            temperature=0.0,
            max_tokens=task["max_tokens"],
            stop_token_ids=[task["eos"]],
            ignore_eos=True,
            detokenize=False,
            extra_args=request and request_options(request),
            repetition_penalty=task["penalty"] if request else 1.0,
        )
        for request in requests
    ]
    prompts = [{"prompt_token_ids": prompt} for prompt in task["prompts"]]
    lists = [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]
    counts = {metric.name.removeprefix("vllm:"): getattr(metric, "value", None) for metric in llm.get_metrics()}
    forced = SamplingParams(min_tokens=3, extra_args=request_options(ListRequest(1)), detokenize=False)
    try:
        llm.generate(prompts[:1], forced, use_tqdm=False)
        refusal = ""
    except VLLMValidationError as error:
        refusal = str(error)
    arguments.output.write_text(
        json.dumps({"lists": lists, "compared": compared, "refusal": refusal, "counts": counts})
    )


if __name__ == "__main__":
    main()
