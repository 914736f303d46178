"""`convrec recommend`, `chat`, `app`, `serve`, `vllm-server`: a model for one or many users."""

import logging
import os
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from convrec.pipeline.commands import ASK, AsJson, Port, PositiveInt, Share, Whole
from convrec.pipeline.commands import app as commands
from convrec.project.errors import InputError

if TYPE_CHECKING:
    from rich.status import Status

    from convrec.service.app.keys import Keys
    from convrec.service.app.metrics import Metrics
    from convrec.service.recommender import Recommender
    from convrec.service.served import ServedModel
    from convrec.service.translation import ModelFiles

# The event loop waits so long for the decoding thread whenever it reads or writes a socket; Python's default of 5 ms
# adds up to seconds with hundreds of connections.
_SWITCH_SECONDS = 0.0005


def _no_option(_type: object, text: str) -> None:
    """Refuse a mistyped option: a message may start with a hyphen, and - is stdin."""
    if re.match(r"--\w", text):
        near = get_close_matches(text.partition("=")[0], ("--model", "--deny", "--allow", "--json"), n=1)
        raise ValueError(f"Unknown option.{f' Did you mean {near[0]}?' if near else ''}")


_NOT_UTF8 = InputError("stdin: not UTF-8; convert the input to UTF-8")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Asking:
    """Options of `recommend` and `chat`.

    Args:
        n: Number of items.
        deny: Never recommend this title; repeatable.
        allow: Recommend only this title; repeatable.
        model: champion, challenger, demo, models:/NAME@ALIAS or a folder.
    """

    n: Annotated[PositiveInt, Parameter(name="-n")] = 20
    deny: tuple[str, ...] = ()
    allow: tuple[str, ...] | None = None
    model: str = "champion"


_ASKING = Asking()


@commands.command(group=ASK)
def recommend(
    conversation: Annotated[str, Parameter(allow_leading_hyphen=True, validator=_no_option)],
    /,
    *,
    asking: Asking = _ASKING,
    as_json: AsJson = False,
) -> None:
    """Answer a conversation with a ranked list (docs/recommender.md).

    Example: convrec recommend "A romantic comedy for date night"

    Args:
        conversation: A user's message, or `User: …` and `Assistant: …` lines; - reads stdin.
    """
    try:
        said = sys.stdin.read().rstrip() if conversation == "-" else conversation
    except UnicodeDecodeError:
        raise _NOT_UTF8 from None
    answer = _open(asking.model).recommend(said, asking.n, asking.deny, asking.allow, or_fewer=True, reasons=True)
    print(answer.to_json() if as_json else answer)


@commands.command(group=ASK)
def chat(*, asking: Asking = _ASKING) -> None:
    """Chat with the model in the terminal (docs/recommender.md).

    Example: convrec chat -n 5
    """
    from convrec.service.session import Session

    session = Session(_open(asking.model), asking.n, asking.deny, asking.allow)
    print(session.help)
    try:
        while not session.is_over:
            print(session.answer(input("> ")))
    except EOFError:
        print()
    except UnicodeDecodeError:
        raise _NOT_UTF8 from None


def _loading(what: str) -> "Status":
    """Return a live line for the terminal; the libraries of a model take seconds."""
    from rich.console import Console

    logging.getLogger("convrec.classical").setLevel(logging.WARNING)  # its progress, of one question at a time
    return Console(stderr=True).status(f"loading {what}")


def _open(name: str) -> "Recommender":
    with _loading(f"the {name} model"):
        from convrec.registry.recommenders import open_recommender
        from convrec.registry.versions import CHAMPION, champion_or_newest

    name = champion_or_newest() if name == CHAMPION else name
    with _loading(f"the {name} model"):
        return open_recommender(name)


BatchSize = Annotated[Whole, Parameter(validator=Number(gte=1, lte=4096), help="Lists that are decoded together.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Serving:
    """Options of `serve` and `app`.

    Args:
        model: A version or a folder that stays, as in `convrec recommend`; default: follow the champion.
        host: Address to listen on.
        allowed_host: Host name that requests may be for, besides localhost; repeatable; default: any, unless --host is
            a loopback address.
        vllm_server: Address of a `convrec vllm-server` that decodes in place of this process.
        max_requests: Requests waiting or being decoded; more get status 429.
        max_seconds: Longest time of a request; later it gets status 504.
        feedback: Database for answers and feedback; `none` records nothing; default: CONVREC_FEEDBACK_URL, else
            feedback/feedback.db.
        save_conversations: Also save what users write.
        evidence: `live` adds what users accept to the evidence that guides lists, within about a minute.
    """

    model: str | None = None
    host: str = "127.0.0.1"
    allowed_host: tuple[str, ...] = ()
    vllm_server: Annotated[str | None, Parameter(metavar="URL")] = None
    batch_size: BatchSize = 64
    max_requests: Annotated[Whole, Parameter(validator=Number(gte=1, lte=2000))] = 192
    max_seconds: Annotated[Whole, Parameter(validator=Number(gte=1, lte=3600))] = 60
    feedback: Annotated[str | None, Parameter(metavar="URL")] = None
    save_conversations: bool = False
    evidence: Literal["trained", "live"] = "trained"


_SERVING = Serving()


@commands.command(group=ASK)
def serve(
    *, options: Serving = _SERVING, port: Port = 8000, keys: Path | None = None, new_key: str | None = None
) -> None:
    """Serve recommendations over HTTP, following the registry's champion (docs/serving.md).

    Example: convrec serve --port 8000

    Args:
        port: 0 chooses a free port.
        keys: Accept only requests with a key of this file.
        new_key: Print a new key of this name, add its hash to the file of --keys, and end.
    """
    from convrec.service.app.edge import log_as_json
    from convrec.service.app.keys import Keys
    from convrec.service.app.keys import new_key as make_key

    if new_key is not None:
        if keys is None:
            raise InputError("--new-key: give the file of keys, too (--keys FILE)")
        print(make_key(keys, new_key))
        return
    known = None if keys is None else Keys(keys)
    log_as_json()
    _run(options, port, "none", has_page=False, keys=known)


@commands.command(group=ASK)
def app(*, options: Serving = _SERVING, port: Port = 7860, challenger: str | None = None) -> None:
    """Serve a web page that compares champion and challenger (docs/recommender.md).

    Example: convrec app --challenger none

    Args:
        port: 0 chooses a free port.
        challenger: The second model; `none` shows one model.
    """
    _run(options, port, challenger, has_page=True)


@commands.command(group=ASK)
def vllm_server(
    *,
    model: str = "champion",
    host: str = "127.0.0.1",
    port: Port = 8001,
    gpus: Annotated[Whole, Parameter(validator=Number(gte=1, lte=64))] = 1,
    gpu_share: Share = 0.9,
    batch_size: BatchSize = 64,
    training: bool = False,
) -> None:
    """Decode for `convrec serve` in a process of its own: vLLM's server with the catalog constraint (docs/serving.md).

    Example: convrec vllm-server --model champion --port 8001

    Args:
        model: A version or a folder that stays, as in `convrec recommend`.
        host: Address to listen on; set VLLM_API_KEY for any other than the default.
        port: 0 chooses a free port.
        gpus: GPUs that share the model.
        gpu_share: Share of each GPU's memory.
        training: Serve the rollouts of rank_grpo instead; everyone who reaches the address can replace the weights.
    """
    import tempfile

    from convrec.generation.engine import require_vllm
    from convrec.registry.recommenders import find_recommender
    from convrec.service.app.server import listening
    from convrec.service.vllm_server import run_vllm_server

    if training and os.environ.get("VLLM_API_KEY"):
        raise InputError(
            "--training: TRL's client, which asks for the rollouts, sends no key; unset VLLM_API_KEY, and keep the "
            "server in a private network"
        )
    require_vllm(gpus, f"--model {model}", "--gpus")
    with listening(host, port) as listener:  # vLLM would share a port that is taken
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="convrec-version-") as folder:
        run_vllm_server(find_recommender(model, Path(folder)), host, port, batch_size, gpus, gpu_share, training)


def _run(options: Serving, port: int, challenger: str | None, has_page: bool, keys: "Keys | None" = None) -> None:
    """Serve until interrupted. The page needs a model at once; the service waits for the first champion."""
    with _loading("the service"):
        from convrec.registry.recommenders import RegistrySource
        from convrec.registry.versions import CHAMPION, MODEL_VARIABLE, champion_or_newest, model_name
        from convrec.service.app.metrics import Metrics
        from convrec.service.app.server import hosts_of, listening, make_app, run
        from convrec.service.app.service import Limits, Service
        from convrec.service.feedback import JOURNAL, FeedbackRecorder, FeedbackStore, feedback_url
        from convrec.service.live import LiveModels
        from convrec.service.live_evidence import LiveEvidence

    if options.evidence == "live" and options.feedback == "none":
        raise InputError("--evidence live learns from feedback; leave out `--feedback none`")
    if has_page and options.model is None and (name := champion_or_newest()) != CHAMPION:
        options = replace(options, model=name)
    if options.model is None:
        os.environ[MODEL_VARIABLE] = model_name()  # a service stays with it, whatever becomes of params.yaml
    sys.setswitchinterval(_SWITCH_SECONDS)
    with ExitStack() as cleanup:
        listener = cleanup.enter_context(listening(options.host, port))
        recorder = None
        if options.feedback != "none":
            recorder = FeedbackRecorder(JOURNAL, feedback_url(options.feedback), options.save_conversations)
            cleanup.callback(recorder.close)
        metrics = Metrics()
        make_served = _engine(options, metrics)
        if options.evidence == "live":
            store = FeedbackStore(feedback_url(options.feedback))
            live = LiveEvidence(store, metrics.evidence_failures.inc, is_required=options.model is not None)
            cleanup.callback(live.close)
            live.start()
            metrics.watch("evidence_items", "Accepted items in the live evidence", lambda: live.num_items)
            make_served = partial(live.make_followed, make_served)
        source = RegistrySource(options.model, challenger, make_served)
        models = LiveModels(source, on_failure=lambda version: metrics.load_failures.inc())
        cleanup.callback(models.close)
        models.start(is_required=has_page or options.model is not None)
        limits = Limits(options.max_requests, options.max_seconds)
        service = Service(models, limits, metrics, recorder, lambda: source.experiment)
        hosts = hosts_of(listener, options.host, options.allowed_host)
        app = make_app(service, has_page=has_page, hosts=hosts, keys=keys)
        run(app, listener, options.host)


def _engine(options: Serving, metrics: "Metrics") -> Callable[[str, "ModelFiles"], "ServedModel"]:
    """Return how the files of a version become a served model."""
    if options.vllm_server is not None:
        from convrec.service.vllm_client import check_url, serve_on_server

        return partial(serve_on_server, url=check_url(options.vllm_server))
    from convrec.service.recommender import Recommender
    from convrec.service.served import Batcher, ServedModel

    def make_served(version: str, files: "ModelFiles") -> ServedModel:
        recommender = Recommender.load(files)
        batcher = Batcher(recommender.complete, options.batch_size, metrics.batch.observe)
        return ServedModel(version, recommender.translator, batcher)

    return make_served
