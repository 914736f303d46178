"""Effect of OpenMP's wait settings on a step and rollouts of the embedded-size model, idle and beside a busy process.

    python -m benchmarks.threads

Each line is one setting, measured in separate processes, alternating between the two conditions; the figures are
medians. By default, a waiting thread spins for a long time; `convrec.project.machine` sets a short spin.
"""

import os
import subprocess
import sys
import time
from statistics import median

from convrec.project.machine import SPINS

ROUNDS, TRIALS = 3, 3
BATCH, TOKENS = 16, 135  # of a step: a prompt of 90 and a completion of 45 tokens
LISTS, PROMPT, COMPLETION = 64, 90, 45  # of the rollouts
VOCABULARY = 1_600  # 1,024 pieces, titles and years
KINDS = {
    "OpenMP's default": {},
    "a short spin": {"GOMP_SPINCOUNT": SPINS},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
_OURS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_BUSY = [sys.executable, "-c", "while True: pass"]


def _trial() -> None:
    """Write the median seconds of a forward and backward pass, and of rollouts."""
    import torch  # noqa: PLC0415  (it reads the variables of this process)
    from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: PLC0415

    from convrec.project.config.params import load_params  # noqa: PLC0415

    sizes = load_params().base_model.embedded
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.num_hidden_layers,
        num_attention_heads=sizes.num_attention_heads,
        num_key_value_heads=sizes.num_key_value_heads,
        tie_word_embeddings=True,
    )
    model, tokens = Qwen2ForCausalLM(config), torch.randint(VOCABULARY, (BATCH, TOKENS))
    prompts = torch.randint(VOCABULARY, (LISTS, PROMPT))
    options = {"do_sample": True, "max_new_tokens": COMPLETION, "eos_token_id": None, "pad_token_id": 0}
    works = (
        lambda: model(input_ids=tokens, labels=tokens).loss.backward(),
        lambda: model.generate(prompts, attention_mask=torch.ones_like(prompts), **options),
    )
    for work in works:
        seconds = []
        for _ in range(TRIALS + 1):
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
        sys.stdout.write(f"{median(seconds[1:])}\n")


def _seconds(variables: dict[str, str]) -> list[float]:
    kept = {name: value for name, value in os.environ.items() if name not in _OURS}
    command = [sys.executable, "-m", "benchmarks.threads", "trial"]
    done = subprocess.run(command, env={**kept, **variables}, capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()[-2:]]


def main() -> None:
    """Print the load before the run, then one line for each setting."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    found: dict[str, list[list[float]]] = {name: [] for name in KINDS}
    for _ in range(ROUNDS):
        for name, variables in KINDS.items():
            quiet = _seconds(variables)
            busy = subprocess.Popen(_BUSY)
            try:
                found[name].append(quiet + _seconds(variables))
            finally:
                busy.kill()
                busy.wait()
    sys.stdout.write(f"{cores} cores, load {load:.1f} before the run; seconds of a step, of rollouts: quiet, busy\n")
    for name, rows in found.items():
        step, rollouts, busy_step, busy_rollouts = map(median, zip(*rows, strict=True))
        sys.stdout.write(f"{name:18} {step:.3f} {rollouts:.3f}   {busy_step:.3f} {busy_rollouts:.3f}\n")


if __name__ == "__main__":
    _trial() if "trial" in sys.argv[1:] else main()
