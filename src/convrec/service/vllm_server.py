"""vLLM's own OpenAI-compatible server, with the catalog constraint of a model version."""

import os
import tempfile
from pathlib import Path
from typing import Any

from convrec.generation.engine import EngineOptions
from convrec.generation.model_folders import standalone
from convrec.generation.vllm_engine import engine_arguments
from convrec.project.device import pick_device
from convrec.project.errors import Unavailable
from convrec.service.translation import ModelFiles
from convrec.service.vllm_client import served_name, vllm_lengths, vllm_translator


def run_vllm_server(
    files: ModelFiles,
    host: str,
    port: int,
    batch_size: int,
    tensor_parallel_size: int,
    gpu_memory_utilization: float,
    training: bool = False,
) -> None:
    """Serve a model until SIGTERM or Ctrl-C, for `ServerDecoder`; it serves one version, under its `served_name`.

    With `training`, serve rollouts for TRL's client, which sends new weights after each step.

    Raises `InputError` if prompt and list are longer than the model's context, and `Unavailable` if the engine stops.
    """
    import uvloop  # noqa: PLC0415  (of vLLM, which is not on every machine)
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup  # noqa: PLC0415

    from convrec.generation.vllm_constraint import VllmCatalogConstraint  # noqa: PLC0415

    cli_env_setup()
    translator, newer = vllm_translator(files)
    trie = translator.trie
    prompt_length, length = vllm_lengths(files.settings, trie)
    whole = standalone(files.checkpoint, newer, files.trust_remote_code)
    with tempfile.TemporaryDirectory(prefix="convrec-vllm-") as made, whole as folder:
        trie_file = Path(made) / "trie.safetensors"
        trie.save(trie_file)
        VllmCatalogConstraint.trie = trie
        sizes = (batch_size, tensor_parallel_size, gpu_memory_utilization)
        options = EngineOptions("vllm", pick_device(files.device), *sizes, files.trust_remote_code)
        arguments = engine_arguments(str(folder), options, prompt_length, length, trie_file)
        arguments |= {"served_model_name": [served_name(files)], "host": host, "port": port}
        arguments["disable_uvicorn_access_log"] = True  # the service logs its requests
        if training:
            arguments |= _training_arguments()
        uvloop.run(_serve(_parsed(arguments)))


def _training_arguments() -> dict[str, Any]:
    """Return what TRL's client needs of the server, besides the endpoints of vLLM's development mode for weights."""
    from vllm.config.weight_transfer import WeightTransferConfig  # noqa: PLC0415  (not on every machine)

    os.environ["VLLM_SERVER_DEV_MODE"] = "1"
    return {
        "weight_transfer_config": WeightTransferConfig(backend="nccl"),
        "logprobs_mode": "processed_logprobs",  # of the distribution that is sampled: masked, penalized, tempered
        "skip_tokenizer_init": False,  # TRL does not name the EOS, which ends a list
        "max_model_len": None,  # TRL's limit of new tokens may be higher than the longest list
    }


async def _serve(parsed: Any) -> None:
    """Serve until a signal; vLLM's `run_server` also returns when its engine has failed, as if all were well."""
    from vllm.entrypoints.launchers.api_server.entry import (  # noqa: PLC0415
        build_and_serve,
        build_async_engine_client,
    )
    from vllm.entrypoints.launchers.launcher import setup_server  # noqa: PLC0415

    address, listener = setup_server(parsed, reuse_port=False)
    is_asked = False
    with listener:
        async with build_async_engine_client(parsed) as engine:
            stop = engine.shutdown

            def shutdown(*arguments: Any, **options: Any) -> None:
                nonlocal is_asked
                is_asked = True
                stop(*arguments, **options)

            engine.shutdown = shutdown  # vLLM calls it after a signal
            end = await build_and_serve(engine, address, listener, parsed)
            has_failed = not is_asked
        await end
    if has_failed:
        raise Unavailable("vLLM's engine has stopped; its log has the reason; start the server again")


def _parsed(arguments: dict[str, Any]) -> Any:
    """Return the parsed command line of vLLM's server, with these values in place of its defaults."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args  # noqa: PLC0415
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    unknown = arguments.keys() - vars(parsed).keys()
    if unknown:
        raise RuntimeError(f"this version of vLLM's server does not know {', '.join(sorted(unknown))}")
    vars(parsed).update(arguments)
    validate_parsed_serve_args(parsed)
    return parsed
