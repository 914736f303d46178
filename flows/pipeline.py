"""Shared parts of the flows: running the stages, recording them, and reporting results and errors."""

import logging
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from mlflow import MlflowClient
from prefect import tags
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.logging import get_run_logger
from rich.console import Console
from rich.markup import escape

from convrec.data.catalog import Catalog
from convrec.data.mentions import Mentions
from convrec.evaluation.report import with_decision
from convrec.evaluation.table import print_summary, results_markdown, results_words
from convrec.pipeline.preflight import require_machine
from convrec.project.atomic import write_text
from convrec.project.config.params import load_params
from convrec.project.errors import EXIT_INTERRUPTED, Reported, Unavailable, outside_cause
from convrec.project.locks import lock_folder
from convrec.project.paths import Paths
from convrec.project.redaction import redact
from convrec.project.stage_record import read_record
from convrec.registry.decisions import skipped_gates
from convrec.registry.tracking import Run, connect, end_pipeline_run, open_run, run_address, runs_page, shown_address
from convrec.registry.tracking.describe import changed_by_runs
from convrec.registry.versions import CHAMPION, find_version, model_name, require_catalog
from convrec.service.reasons import Reasons, example_requests
from flows.console import FlowConsole, duration
from flows.summary import summarize
from tasks.champion import decide_promotion, register_checkpoint
from tasks.command import SHOWN
from tasks.dvc_stage import Stage, choose_stages, needs_run, run_stage
from tasks.raw_data import pull_raw_data, push_outputs
from tasks.server import check_server, private_server, server_failure, ui_line

Outcome = dict[str, str]


def run_name(flow: str) -> Callable[[], str]:
    """Return a function that names a flow run by flow, profile and time."""
    return lambda: f"{flow} {load_params().common.profile} {datetime.now():%Y-%m-%d %H:%M}"


def bring_up_to_date(
    name: str,
    stages: list[str] | None = None,
    force: list[str] | None = None,
    before: Callable[[], None] = lambda: None,
    after_data: Callable[[Run], None] = lambda _run: None,
) -> Outcome:
    """Run the stages that are out of date in the graph's order, then register and promote; return the outcome.

    With `stages`, only these may run, and nothing is registered. Stages in `force` run even if nothing has changed, and
    train again. Up-to-date stages start no task; if all are up to date, nothing is recorded. `before` is called first,
    with the folder locked. `after_data` is called with the parent run after the stage `data` has run.
    """
    chosen = choose_stages(stages, force)
    with lock_folder():
        before()
        pull_raw_data()
        return _run(name, chosen, stages is None, force or [], after_data)


def _run(name: str, stages: list[Stage], whole: bool, force: list[str], after_data: Callable[[Run], None]) -> Outcome:
    logger, paths = get_run_logger(), Paths()
    seconds: dict[str, float] = {}
    outcome = {"run": "", "page": "", "version": "", "aliases": "", "decision": ""}
    run: Run | None = None
    ended, decision, summary = "KILLED", None, ""
    try:
        for place, stage in enumerate(stages):
            title, forced = f"[{place + 1}/{len(stages)}]  {stage.name:<15}", stage.name in force
            if not forced and not needs_run(stage.name):
                logger.info("%s %10s", title, "up to date", extra=SHOWN)
                continue
            if run is None:
                params = load_params()
                if any(later.gpu for later in stages[place:]):
                    require_machine(params)
                run_tags = {"flow": name, **params.tags()}
                run = open_run(run_name(name)(), run_tags, params.model_dump())
                outcome["run"] = run.run_id
                logger.info(ui_line(), extra=SHOWN)
                outcome["page"] = shown_address(runs_page(max(params.common.cutoffs))) or ""
            began = time.monotonic()
            run_stage(stage, forced, run.run_id)
            seconds[stage.name] = time.monotonic() - began
            record = read_record(paths.record(stage.name))
            figures = record.figures.items() if record else ()
            last = "".join(f"  {name} {value:.4g}" for name, value in figures)
            logger.info("%s %10s%s", title, duration(seconds[stage.name]), last, extra=SHOWN)
            if stage.name == "data":
                if whole:
                    require_catalog(paths)
                after_data(run)
        if whole:
            decision = decide_promotion(register_checkpoint(outcome["run"] or None))
            outcome |= {"version": decision.challenger, "decision": decision.reason}
            outcome |= {"aliases": ", ".join(sorted(find_version(MlflowClient(), decision.challenger).aliases))}
            note = f"{decision.reason} {skipped_gates(decision)}"
            page = with_decision(paths.report.read_text(encoding="utf-8"), decision.status.capitalize(), note)
            write_text(paths.decided_report, page)
        words, results = (results_words(paths), results_markdown(paths)) if whole else ([], "")
        summary = summarize(seconds, [stage.name for stage in stages], decision, words, results)
        ended = "FINISHED"
    except Exception:
        ended = "FAILED"
        raise
    finally:
        if run is not None:
            end_pipeline_run(run, paths, ended, whole, summary, decision.status if decision else "")
    if whole:
        text = "The decision, the test results, and the time of each stage"
        create_markdown_artifact(summary, key=f"{name}-results", description=text)
    if whole and outcome["run"]:
        if address := run_address(outcome["run"]):
            create_link_artifact(address, link_text="The run in MLflow", key=f"{name}-run")
            report = f"{address}/artifacts/{paths.decided_report.name}"
            create_link_artifact(report, link_text="The report of the run", key=f"{name}-report")
        push_outputs()
    return outcome


def check_folder(stages: list[str] | None = None, force: list[str] | None = None) -> None:
    """Check that these stages can run in this folder.

    Raises `InputError` if a stage, git or DVC is missing, and `Unavailable` while another run uses the folder.
    """
    choose_stages(stages, force)
    with lock_folder():
        pass


def refuse_early(check: Callable[[], object]) -> None:
    """Raise errors that a retry cannot fix before any stage runs; a server that is down may be back later."""
    with suppress(Unavailable):
        check()


def _reported(error: BaseException) -> Reported | None:
    """Return the error to report in one message; None for a bug."""
    return error if isinstance(error, Reported) else server_failure(error) or outside_cause(error)


def _without_traceback(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if error and (isinstance(error, KeyboardInterrupt) or _reported(error)):
        record.exc_info = None
    return True


def run_and_print(name: str, run: Callable[[], Outcome], check: Callable[[], object]) -> None:
    """Run a flow and print its outcome; on an error, print one message and exit with the error's status.

    The terminal shows a line for each stage. Errors of `check`, invalid parameters and unreachable servers are reported
    before a flow run is created.
    """
    for kind in ("flow_runs", "task_runs"):
        logging.getLogger(f"prefect.{kind}").addFilter(_without_traceback)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # hides messages about a new store
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # hides retries; the outcome is reported
    signal.signal(signal.SIGINT, signal.default_int_handler)  # from now on, Ctrl-C must end a run cleanly
    shown: logging.Handler = logging.NullHandler()
    try:
        profile = load_params().common.profile
        check()
        shown = FlowConsole(Console(stderr=True))
        for log in map(logging.getLogger, ("prefect", "convrec")):
            log.addHandler(shown)
            log.propagate = False  # Prefect's console handler is on the root logger
        connect()
        check_server()
        with private_server(), tags(name, profile):
            outcome = run()
    except KeyboardInterrupt:
        Console(stderr=True).print("[red]interrupted[/red]")
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        reported = _reported(error)
        if reported is None:
            raise
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[red]{escape(redact(str(reported)))}[/red]")
        sys.exit(reported.status)
    finally:
        shown.close()
    _print(outcome)


def _print(outcome: Outcome) -> None:
    lines = [] if outcome["run"] else ["\nNothing to do: every stage is up to date."]
    if outcome["version"]:
        print_summary(Paths(), outcome["decision"])
        lines.append(f"Model: {model_name()} version {outcome['version']} ({outcome['aliases'] or 'no alias'})")
    if outcome["run"]:
        lines.append(f"Run: {outcome['run']}")
    if outcome["version"]:
        lines.append(f"Report: {Paths().decided_report}")
    lines.append(f"Tracking UI: {outcome['page'] or shown_address('') or 'make ui'}")
    lines += changes_line(changed_by_runs())
    if outcome["version"]:
        # Commands that can be pasted; a version that is not the champion has to be named.
        name, items = "" if CHAMPION in outcome["aliases"] else " --model challenger", load_params().common.domain.items
        lines.append("\nNext steps:")
        if os.environ.get("VIRTUAL_ENV") != sys.prefix:
            environment = Path(sys.prefix)
            place = environment.relative_to(Path.cwd()) if environment.is_relative_to(Path.cwd()) else environment
            lines.append(f"  source {shlex.quote(str(place / 'bin' / 'activate'))}")
        catalog = Catalog.read(Paths().catalog)
        examples = example_requests(catalog, Reasons(catalog, Mentions(catalog)), items)
        request = shlex.quote((examples or [f"Some {items}, please"])[0])
        lines.append(f"  convrec recommend {request}{name}   # ask the model")
        lines.append(f"  convrec app{name}   # ask it in a web page")
        lines.append("  convrec results   # every metric of the table")
    Console(highlight=False, soft_wrap=True).print(*lines, sep="\n", markup=False)


def changes_line(files: Sequence[str]) -> list[str]:
    """Return one line about the tracked files that a run has changed: why, and what to do; none without files."""
    places = " ".join(dict.fromkeys(file.split("/")[0] for file in files))
    text = "Files that git tracks now hold this run's results: commit them to keep these, or restore the earlier ones"
    return [f"{text} (git restore {places})"] if files else []
