"""The estimate of a training's memory (`convrec preflight --profile`) beside the memory that it really takes here.

Three models of the embedded architecture train three steps on the longest rows of the project's data, with prompts and
lists as long as the parameters allow. What a process needs without a model is measured with a very small one.

    python -m benchmarks.memory [--sizes 3]
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from convrec.config.params import Params, load_params, parse_params
from convrec.experiments.estimate import estimate_step
from convrec.experiments.trial import ScratchProject
from convrec.hardware.machine import GIB
from convrec.paths import Paths

# hidden size, layers, heads, lists in a micro-batch
SIZES = ((32, 1, 1, 4), (256, 4, 8, 64), (512, 8, 8, 32), (768, 12, 12, 16))


def sized(params: Params, hidden: int, layers: int, heads: int, rows: int) -> Params:
    """Return the parameters of a trial: the model's size, and sequences that all reach their limits."""
    raw: dict[str, Any] = params.model_dump()
    raw["base_model"]["embedded"] |= {
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
    }
    raw["common"] |= {"device": "cpu", "max_prompt_length": 96}
    raw["sft"] |= {"max_length": 160, "per_device_train_batch_size": rows // 2}
    # Untrained models without a constraint hardly ever end a list before its limit.
    raw["rank_grpo"] |= {"constrained": False, "max_completion_length": 64, "per_device_train_batch_size": rows}
    return parse_params(raw, "benchmark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, default=3, choices=(1, 2, 3))
    options = parser.parse_args()
    params, paths = load_params(), Paths()
    without: dict[str, float] = {}
    sys.stdout.write(f"{'parameters':>12}  {'stage':10}  {'measured':>10}  {'estimate':>10}  ratio\n")
    for size in SIZES[: options.sizes + 1]:
        own = sized(params, *size)
        with tempfile.TemporaryDirectory(prefix="memory-") as folder:
            scratch = ScratchProject(own, paths, Path(folder) / "project")
            for stage in ("base_model", "sft", "rank_grpo"):
                trial = scratch.run(stage, None)
                if trial.status:
                    raise SystemExit(f"{stage} ended with status {trial.status}: {trial.output[-500:]}")
                if stage == "base_model":
                    scratch.make_rows_longest()
                    config = AutoConfig.from_pretrained(scratch.own.model("base"))
                    number = sum(file.stat().st_size for file in scratch.own.model("base").glob("*.safetensors")) / 4e6
                    continue
                parts = estimate_step(own, stage, config)
                estimate = parts.tensors + parts.allocator
                if stage not in without:
                    without[stage] = trial.peak - estimate
                    continue
                measured = trial.peak - without[stage]
                sys.stdout.write(
                    f"{number:10.1f} M  {stage:10}  {measured / GIB:6.2f} GiB  {estimate / GIB:6.2f} GiB  "
                    f"{estimate / measured:.2f}\n"
                )
                sys.stdout.flush()


if __name__ == "__main__":
    main()
