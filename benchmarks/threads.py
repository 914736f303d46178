"""What OpenMP's way of waiting costs: forward and backward of the embedded-size model, quiet and beside a busy process.

    python -m benchmarks.threads

Each line is one way to wait, in processes of its own, the two surroundings in turn; the figures are medians. The
default spins while a thread waits for the others; `convrec.threads` makes passive waiting the product's default.
"""

import os
import subprocess
import sys
import time
from statistics import median

ROUNDS, TRIALS = 3, 5
BATCH, TOKENS = 16, 135  # a prompt of 90 and a completion of 45
VOCABULARY = 1_600  # 1,024 pieces, titles and years
KINDS = {
    "OpenMP's default": {},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
_OURS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_BUSY = [sys.executable, "-c", "while True: pass"]


def _trial() -> None:
    """Write the median seconds of a forward and backward pass."""
    import torch  # noqa: PLC0415  (it reads the variables of this process)
    from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: PLC0415

    from convrec.config import load_params  # noqa: PLC0415

    sizes = load_params().base_model.embedded
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.num_layers,
        num_attention_heads=sizes.num_heads,
        num_key_value_heads=sizes.num_key_value_heads,
        tie_word_embeddings=True,
    )
    model, tokens = Qwen2ForCausalLM(config), torch.randint(VOCABULARY, (BATCH, TOKENS))
    seconds = []
    for _ in range(TRIALS + 1):
        start = time.perf_counter()
        model(input_ids=tokens, labels=tokens).loss.backward()
        seconds.append(time.perf_counter() - start)
    sys.stdout.write(f"{median(seconds[1:])}\n")


def _seconds(variables: dict[str, str]) -> float:
    kept = {name: value for name, value in os.environ.items() if name not in _OURS}
    command = [sys.executable, "-m", "benchmarks.threads", "trial"]
    done = subprocess.run(command, env={**kept, **variables}, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Print the load before the run, then one line a kind."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in KINDS}
    for _ in range(ROUNDS):
        for name, variables in KINDS.items():
            found[name][0].append(_seconds(variables))
            busy = subprocess.Popen(_BUSY)
            try:
                found[name][1].append(_seconds(variables))
            finally:
                busy.kill()
                busy.wait()
    sys.stdout.write(f"{cores} cores, load {load:.1f} before the run; seconds a pass\n")
    for name, (quiet, beside) in found.items():
        sys.stdout.write(f"{name:18} quiet {median(quiet):.3f}   beside a busy process {median(beside):.3f}\n")


if __name__ == "__main__":
    _trial() if "trial" in sys.argv[1:] else main()
