"""Time and memory to find leaks between 100,000 training and 5,000 held-out prompts with a common instruction.

    python -m benchmarks.leakage
    python -m benchmarks.leakage --request 10    # short requests: most of a prompt is the instruction

Prompts have about 120 words with frequencies by Zipf's law. One held-out prompt in a hundred is a training prompt
with two words changed. Peak memory is that of the process (Linux).
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from convrec.data.leakage import find_leaks

VOCABULARY = 30_000


def make_rows(rng: np.random.Generator, prefix: str, number: int, instruction: str, words: int) -> pd.DataFrame:
    """Return rows with one message each: the instruction, and a request of about `words` words."""
    frequency = 1 / np.arange(1, VOCABULARY + 1)
    lengths = np.maximum(1, rng.normal(words, words / 4, number).astype(int))
    drawn = rng.choice(VOCABULARY, lengths.sum(), p=frequency / frequency.sum())
    requests = [" ".join(f"w{word}" for word in part) for part in np.split(drawn, np.cumsum(lengths)[:-1])]
    names = [f"{prefix}-{place}" for place in range(number)]
    messages = [[{"role": "user", "content": f"{instruction} {request}"}] for request in requests]
    return pd.DataFrame({"conversation_id": names, "prompt_id": names, "messages": messages})


def main() -> None:
    """Find the leaks once, and print time and memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=100_000)
    parser.add_argument("--held-out", type=int, default=5_000)
    parser.add_argument("--instruction", type=int, default=40, help="its words")
    parser.add_argument("--request", type=int, default=80, help="mean number of words of a request")
    parser.add_argument("--similarity", type=float, default=0.8)
    parser.add_argument("--template-share", type=float, default=1.0)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    instruction = " ".join(f"i{place}" for place in range(options.instruction))
    train = make_rows(rng, "train", options.train, instruction, options.request)
    held_out = make_rows(rng, "test", options.held_out, instruction, options.request)
    for place in range(0, options.held_out, 100):
        words = train["messages"][place][0]["content"].split()
        words[-1], words[len(words) * 3 // 4] = "changed", "too"
        held_out["messages"][place][0]["content"] = " ".join(words)
    start = time.perf_counter()
    reasons = find_leaks(train, {"test": held_out}, options.similarity, options.template_share)
    seconds = time.perf_counter() - start
    peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 2**20
    leaks = sum(reason is not None for reason in reasons)
    sys.stdout.write(f"{seconds:.1f} s, {peak:.2f} GiB at most, {leaks:,} leaks of {len(reasons):,} rows\n")


if __name__ == "__main__":
    main()
