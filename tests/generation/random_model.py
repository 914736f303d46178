"""A random model and prompts for the engines' tests; `python -m tests.generation.random_model` lists them by vLLM."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from convrec.generation.pretrained import load_tokenizer
from convrec.generation.trie import CatalogTrie, ListRequest
from convrec.training.embedded import make_model, train_tokenizer
from tests.generation.small import save, sizes

SIZES = sizes(layers=2)
WORDS = ["a", "film", "something", "with", "heists", "please", "old"]
LINES = [f"{one} {other}" for one in WORDS for other in WORDS]  # of a small catalog
PENALTIES = (1.0, 1.2)
MAX_NEW = 24
REQUESTS = [ListRequest(6, banned=range(3 * i)) for i in range(11)]


def make_random_model(folder: Path, seed: int = 0) -> Path:
    """Write an untrained Qwen2 with its tokenizer, and return its folder."""
    tokenizer = train_tokenizer([" ".join(WORDS)] * 5, [], 300)
    return save(folder, make_model(tokenizer, **SIZES, seed=seed), tokenizer)


def prompts_of(number: int) -> list[list[dict[str, str]]]:
    """Return distinct prompts of several lengths."""
    texts = (" ".join(WORDS[(i + j * j) % len(WORDS)] for j in range(1 + i)) for i in range(number))
    return [[{"role": "user", "content": text}] for text in texts]


def make_trie(tokenizer: Any) -> CatalogTrie:
    """Return the trie of a small catalog."""
    return CatalogTrie.build(LINES, tokenizer)


def main() -> None:
    """Write vLLM's lists for each penalty, free and from a catalog; one engine serves all."""
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    from convrec.generation.engine import EngineOptions  # noqa: PLC0415
    from convrec.generation.vllm_engine import VllmEngine  # noqa: PLC0415

    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    tokenizer = load_tokenizer(options.model)
    trie = make_trie(tokenizer)
    machine, longest = EngineOptions("vllm", "cpu", 4, 1, 0.1), trie.longest(REQUESTS[0].length)
    engine = VllmEngine.load(options.model, tokenizer, machine, longest, 1.0, trie, max_prompt_length=64)
    lists = []
    for penalty in PENALTIES:
        shared = (engine._model, engine.tokenizer, 4, MAX_NEW, penalty)
        lists.append(VllmEngine(*shared).generate(prompts_of(11)))
        lists.append(VllmEngine(*shared, trie).generate(prompts_of(11), REQUESTS))
    engine.close()
    options.output.write_text(json.dumps(lists))


if __name__ == "__main__":
    main()
