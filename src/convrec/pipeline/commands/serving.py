"""`convrec serve` and `convrec app`: answer many users over HTTP, and a web page for people; `convrec vllm-server`."""

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convrec.pipeline.commands import add_command, share, whole_number
from convrec.project.errors import InputError

# The event loop waits so long for the decoding thread whenever it reads or writes a socket; Python's default of 5 ms
# adds up to seconds with hundreds of connections.
_SWITCH_SECONDS = 0.0005

_MODEL = "a version or a folder that stays, as in `convrec recommend`"
_BATCH_SIZE = "lists that are decoded together"

if TYPE_CHECKING:
    from convrec.service.app.keys import Keys
    from convrec.service.app.metrics import Metrics
    from convrec.service.served import ServedModel
    from convrec.service.translation import ModelFiles


def add(commands: Any) -> None:
    """Add the commands."""
    text = "serve recommendations over HTTP, following the registry's champion"
    serve = add_command(commands, "serve", _serve, text, "convrec serve --port 8000", "docs/serving.md")
    text = "serve a web page that compares champion and challenger"
    app = add_command(commands, "app", _app, text, "convrec app --challenger none", "docs/recommender.md")
    for command, port in ((serve, 8000), (app, 7860)):
        command.add_argument("--model", metavar="NAME", help=f"{_MODEL}; default: follow the champion")
        _add_address(command, port, "address to listen on; default: %(default)s")
        text = "address of a `convrec vllm-server` that decodes in place of this process, without scores"
        command.add_argument("--vllm-server", metavar="URL", help=text)
        _add_number(command, "--batch-size", whole_number(1, 4096), 64, _BATCH_SIZE)
        text = "requests waiting or being decoded; more get status 429"
        _add_number(command, "--max-requests", whole_number(1, 2000), 192, text)
        text = "longest time of a request, in seconds; later it gets status 504"
        _add_number(command, "--max-seconds", whole_number(1, 3600), 60, text)
        command.add_argument(
            "--feedback",
            metavar="URL",
            help="database for answers and feedback; `none` records nothing; "
            "default: CONVREC_FEEDBACK_URL, else feedback/feedback.db",
        )
        command.add_argument("--save-conversations", action="store_true", help="also save what users write")
    app.add_argument("--challenger", metavar="NAME", help="the second model; `none` shows one model")
    serve.add_argument("--keys", metavar="FILE", help="accept only requests with a key of this file")
    serve.add_argument("--new-key", metavar="NAME", help="print a new key, add its hash to the file of --keys, and end")
    serve.add_argument(
        "--rate",
        type=whole_number(1, 1_000_000),
        default=600,
        metavar="N",
        help="requests per minute for each key; default: %(default)s",
    )
    _add_number(serve, "--stop-seconds", whole_number(0, 3600), 30, "time for requests in progress after SIGTERM")

    text = "decode for `convrec serve` in a process of its own: vLLM's server with the catalog constraint"
    example = "convrec vllm-server --model champion --port 8001"
    server = add_command(commands, "vllm-server", _vllm_server, text, example, "docs/serving.md")
    server.add_argument("--model", metavar="NAME", default="champion", help=f"{_MODEL}; default: the champion now")
    text = "address to listen on; set VLLM_API_KEY for any other than the default, %(default)s"
    _add_address(server, 8001, text)
    _add_number(server, "--gpus", whole_number(1, 64), 1, "GPUs that share the model")
    _add_number(server, "--gpu-share", share, 0.9, "share of each GPU's memory")
    _add_number(server, "--batch-size", whole_number(1, 4096), 64, _BATCH_SIZE)
    text = "serve the rollouts of rank_grpo instead; everyone who reaches the address can replace the weights"
    server.add_argument("--training", action="store_true", help=text)


def _add_address(command: Any, port: int, host_help: str) -> None:
    command.add_argument("--host", default="127.0.0.1", help=host_help)
    _add_number(command, "--port", whole_number(0, 65_535), port, "%(type)s; 0 chooses a free port")


def _add_number(
    command: argparse.ArgumentParser, name: str, kind: Callable[[str], Any], default: Any, text: str
) -> None:
    command.add_argument(name, type=kind, default=default, help=f"{text}; default: %(default)s")


def _serve(options: argparse.Namespace) -> None:
    from convrec.service.app.edge import log_as_json
    from convrec.service.app.keys import Keys, new_key

    if options.new_key is not None:
        if options.keys is None:
            raise InputError("--new-key: give the file of keys, too (--keys FILE)")
        print(new_key(Path(options.keys), options.new_key))
        return
    keys = None if options.keys is None else Keys(Path(options.keys), options.rate)
    log_as_json()
    _run(options, "none", False, keys, options.stop_seconds)


def _app(options: argparse.Namespace) -> None:
    _run(options, options.challenger, True)


def _vllm_server(options: argparse.Namespace) -> None:
    import tempfile

    from convrec.generation.vllm_engine import require_vllm
    from convrec.registry.recommenders import find_model
    from convrec.service.app.server import listening
    from convrec.service.vllm_server import run_vllm_server

    if options.training and os.environ.get("VLLM_API_KEY"):
        raise InputError(
            "--training: TRL's client, which asks for the rollouts, sends no key; unset VLLM_API_KEY, and keep the "
            "server in a private network"
        )
    require_vllm(options.gpus, f"--model {options.model}", "--gpus")
    with listening(options.host, options.port) as listener:  # vLLM would share a port that is taken
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="convrec-version-") as folder:
        files = find_model(options.model, Path(folder))
        own = (options.batch_size, options.gpus, options.gpu_share, options.training)
        run_vllm_server(files, options.host, port, *own)


def _run(
    options: argparse.Namespace,
    challenger: str | None,
    has_page: bool,
    keys: "Keys | None" = None,
    stop_seconds: int = 5,
) -> None:
    """Serve until interrupted. The page needs a model at once; the service waits for the first champion."""
    from convrec.registry.recommenders import RegistrySource
    from convrec.service.app.metrics import Metrics
    from convrec.service.app.server import hosts_of, listening, make_app, run
    from convrec.service.app.service import Limits, Service
    from convrec.service.feedback import JOURNAL, FeedbackRecorder, feedback_url
    from convrec.service.live import LiveModels

    sys.setswitchinterval(_SWITCH_SECONDS)
    with ExitStack() as cleanup:
        listener = cleanup.enter_context(listening(options.host, options.port))
        recorder = None
        if options.feedback != "none":
            recorder = FeedbackRecorder(JOURNAL, feedback_url(options.feedback), options.save_conversations)
            cleanup.callback(recorder.close)
        metrics = Metrics()
        source = RegistrySource(options.model, challenger, _engine(options, metrics))
        models = LiveModels(source, on_failure=lambda version: metrics.load_failures.inc())
        cleanup.callback(models.close)
        models.start(is_required=has_page or options.model is not None)
        limits = Limits(options.max_requests, options.max_seconds)
        service = Service(models, limits, metrics, recorder, lambda: source.experiment)
        hosts = hosts_of(listener, options.host)
        app = make_app(service, has_page=has_page, hosts=hosts, keys=keys)
        run(app, listener, options.host, stop_seconds)


def _engine(options: argparse.Namespace, metrics: "Metrics") -> Callable[[str, "ModelFiles"], "ServedModel"]:
    """Return how the files of a version become a served model."""
    if options.vllm_server is not None:
        from convrec.service.vllm_client import check_url, serve_on_server

        return partial(serve_on_server, url=check_url(options.vllm_server))
    from convrec.service.recommender import Recommender
    from convrec.service.served import ServedModel

    def make_served(version: str, files: "ModelFiles") -> ServedModel:
        recommender = Recommender.of_files(files)
        return ServedModel.of_recommender(version, recommender, options.batch_size, metrics.batch.observe)

    return make_served
