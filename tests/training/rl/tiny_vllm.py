"""`python -m tests.training.rl.tiny_vllm`: the tiny trainer with vLLM, on a CPU or a GPU; with `--serve`, the server.

vLLM's CPU backend packs linear weights and drops the originals, so that TRL cannot load new ones; here the weights stay
as they are. `CONVREC_TEST_DTYPE` is the type of the colocated weights: TRL leaves it to vLLM, which halves float32. The
server gets new weights as a file: TRL's way, NCCL, needs a GPU for each side.
"""

import argparse
import functools
import os
import sys
import tempfile
from pathlib import Path

import torch

HAS_GPU = torch.cuda.is_available()
os.environ |= {"VLLM_USE_V1": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
if not HAS_GPU:
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"

from convrec.training.launch import rank_process  # noqa: E402
from tests.training.rl import tiny  # noqa: E402


def _keep_weights(layer, *_, **__) -> None:
    layer.cpu_linear = torch.nn.functional.linear


if not HAS_GPU:  # here, because the server's engine runs in a process that imports this module
    from vllm.model_executor.layers import utils

    utils.dispatch_cpu_unquantized_gemm = _keep_weights


def _send_by_file(client, _, named_params) -> None:
    from safetensors.torch import save_file  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        save_file({name: value.contiguous().cpu() for name, value in named_params}, f"{folder}/model.safetensors")
        body = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        client._post(f"{client.base_url}/collective_rpc", json=body)


def train() -> None:
    from trl.generation import vllm_generation  # noqa: PLC0415

    dtype = os.environ.get("CONVREC_TEST_DTYPE", "float32")
    vllm_generation.LLM = functools.partial(vllm_generation.LLM, enforce_eager=True, dtype=dtype)
    vllm_generation.VLLMClient.init_communicator = lambda client, device: None
    vllm_generation.VLLMClient.update_named_params = _send_by_file
    tiny.main()


def serve() -> None:
    from convrec.generation.lists import ListSettings  # noqa: PLC0415
    from convrec.service.translation import ModelFiles  # noqa: PLC0415
    from convrec.service.vllm_server import run_vllm_server  # noqa: PLC0415

    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", type=int, metavar="PORT")
    parser.add_argument("--model", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        catalog = Path(folder) / "catalog.parquet"
        tiny.CATALOG.to_frame().to_parquet(catalog)
        files = ModelFiles(options.model, catalog, ListSettings(None, tiny.NUM_RANKS, 32, max_prompt_length=64))
        run_vllm_server(files, "127.0.0.1", options.serve, 32, 1, 0.3, training=True)


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve()
    else:
        with rank_process():
            train()
