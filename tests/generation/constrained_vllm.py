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

import torch  # noqa: E402
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.exceptions import VLLMValidationError  # noqa: E402
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality  # noqa: E402

from convrec.generation.constraint import ConstraintState  # noqa: E402
from convrec.generation.trie import CatalogTrie, ListRequest  # noqa: E402
from convrec.generation.vllm_constraint import VllmCatalogConstraint, engine_options  # noqa: E402
from convrec.generation.vllm_requests import request_options, requested_list  # noqa: E402
from tests.generation.vocabularies import log_weights  # noqa: E402

PLACES, STEPS = 5, 400


def follow_a_changing_batch(trie_file: Path, trie: CatalogTrie, vocab_size: int) -> int:
    """Return how many rows were compared; requests come, go, move, change places, and are cut back."""
    draw = random.Random(0)
    config = SimpleNamespace(
        additional_config=engine_options(trie_file)["additional_config"],
        scheduler_config=SimpleNamespace(max_num_seqs=PLACES),
        model_config=SimpleNamespace(get_vocab_size=lambda: vocab_size),
    )
    processor = VllmCatalogConstraint(config, torch.device("cpu"), False)
    batch: list[tuple[list[int], ListRequest | None]] = []
    compared = 0
    for _ in range(STEPS):
        removed, moved, added = [], [], []
        if batch and draw.random() < 0.2:  # the last takes the place of the one that went
            place = draw.randrange(len(batch))
            removed.append(place)
            last = batch.pop()
            if place < len(batch):
                batch[place] = last
                moved.append((len(batch), place, MoveDirectionality.UNIDIRECTIONAL))
        elif len(batch) < PLACES and draw.random() < 0.4:
            guided = ListRequest(2, log_weights=log_weights({1: 1.5, 3: -1.0}))
            request = draw.choice([None, guided, ListRequest(3, banned=[0, 4]), ListRequest(1, allowed=[2])])
            params = SamplingParams(extra_args=request and request_options(request, 1.7))
            batch.append(([], request))
            added.append((len(batch) - 1, params, [1, 2], batch[-1][0]))
        elif len(batch) > 1 and draw.random() < 0.3:
            one, other = draw.sample(range(len(batch)), 2)
            batch[one], batch[other] = batch[other], batch[one]
            moved.append((one, other, MoveDirectionality.SWAP))
        elif batch and draw.random() < 0.1:
            del draw.choice(batch)[0][-1:]
        changed = BatchUpdate(len(batch), removed, added, moved) if removed or added or moved else None
        processor.update_state(changed)
        scores = torch.randn(len(batch), vocab_size)
        logits = processor.apply(scores.clone())
        for row, expected, (tokens, request) in zip(logits, scores, batch, strict=True):
            if request is not None:
                alone = ConstraintState(trie, [request], vocab_size)
                for token in tokens:
                    alone.advance(torch.tensor([token]))
                assert not alone.lost.any()
                if request.log_weights:
                    held = torch.tensor([[1, 2, *tokens]])
                    expected = RepetitionPenaltyLogitsProcessor(1.7)(held, expected[None])[0]  # noqa: PLW2901
                expected = alone.mask_(expected[None])[0]  # noqa: PLW2901
                compared += 1
            assert torch.equal(row, expected)
            tokens.append(draw.choice(expected.isfinite().nonzero().squeeze(1).tolist()))
    return compared


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
        num_gpu_blocks_override=7,  # too few for three lists: some are interrupted
        disable_log_stats=False,
        max_num_seqs=3,
        max_num_batched_tokens=24,  # less than a prompt: it is read in parts
        generation_config="vllm",
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
            extra_args=request and request_options(request, task["penalty"]),
        )
        for request in requests
    ]
    prompts = [{"prompt_token_ids": prompt} for prompt in task["prompts"]]
    lists = [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]
    (interrupted,) = (metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")
    forced = SamplingParams(min_tokens=3, extra_args=request_options(ListRequest(1)), detokenize=False)
    try:
        llm.generate(prompts[:1], forced, use_tqdm=False)
        refusal = ""
    except VLLMValidationError as error:
        refusal = str(error)
    arguments.output.write_text(
        json.dumps({"lists": lists, "compared": compared, "refusal": refusal, "interrupted": interrupted})
    )


if __name__ == "__main__":
    main()
