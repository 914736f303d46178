"""`python -m tests.training.rl.tiny_vllm`: the tiny trainer with vLLM colocated, on a CPU or a GPU.

vLLM's CPU backend packs linear weights and drops the originals, so that TRL cannot load new ones; here the weights stay
as they are. `CONVREC_TEST_DTYPE` is the type of vLLM's weights: TRL leaves it to vLLM, which halves float32.
"""

import functools
import os

import torch

HAS_GPU = torch.cuda.is_available()
os.environ |= {"VLLM_USE_V1": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
if not HAS_GPU:
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"

from convrec.training.launch import rank_process  # noqa: E402
from tests.training.rl import tiny  # noqa: E402


def _keep_weights(layer, *_, **__) -> None:
    layer.cpu_linear = torch.nn.functional.linear


def main() -> None:
    from trl.generation import vllm_generation  # noqa: PLC0415
    from vllm.model_executor.layers import utils  # noqa: PLC0415

    if not HAS_GPU:
        utils.dispatch_cpu_unquantized_gemm = _keep_weights
    dtype = os.environ.get("CONVREC_TEST_DTYPE", "float32")
    vllm_generation.LLM = functools.partial(vllm_generation.LLM, enforce_eager=True, dtype=dtype)
    tiny.main()


if __name__ == "__main__":
    with rank_process():
        main()
