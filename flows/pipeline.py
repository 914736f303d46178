"""Shared parts of the flows: running the stages, recording them, and reporting results and errors."""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TypeVar

from prefect import tags
from prefect.logging import get_run_logger
from rich.console import Console
from rich.markup import escape

from convrec.evaluation.table import print_summary, results_markdown
from convrec.pipeline.preflight import require_machine
from convrec.project.config.params import load_params
from convrec.project.errors import EXIT_INTERRUPTED, InputError, Unavailable, exit_status, outside_cause
from convrec.project.locks import lock_folder
from convrec.project.paths import Paths
from flows.console import show_stages
from flows.summary import summarize, write_run_report
from flows.temporary_server import start_temporary_server
from tasks.artifacts import show_link, show_table
from tasks.command import StageFailed
from tasks.dvc_stage import Stage, choose_stages, needs_run, run_stage, stages
from tasks.promotion import decide_promotion, register_checkpoint
from tasks.raw_data import pull_raw_data, push_outputs
from tasks.server import check_server, has_server

Outcome = dict[str, str]
T = TypeVar("T")
_REPORTED = (StageFailed, InputError, Unavailable)  # in one message, without a traceback


def run_name(flow: str) -> Callable[[], str]:
    """Return a function that names a flow run by flow, profile and time."""
    return lambda: f"{flow} {load_params().common.profile} {datetime.now():%Y-%m-%d %H:%M}"


def bring_up_to_date(
    name: str,
    stages: list[str] | None = None,
    force: list[str] | None = None,
    before: Callable[[], None] = lambda: None,
    after_data: Callable[[str], None] | None = None,
) -> Outcome:
    """Run the stages that are out of date in the graph's order, then register and promote; return the outcome.

    With `stages`, only these may run, and nothing is registered. Stages in `force` run even if nothing has changed, and
    train again. Up-to-date stages start no task; if all are up to date, nothing is recorded. `before` is called first,
    with the folder locked. `after_data` is called with the id of the parent run after the stage `data` has run.
    """
    chosen = choose_stages(stages, force)
    with lock_folder():
        before()
        pull_raw_data()
        outcome = _run(name, chosen, stages is None, force or [], after_data)
    return outcome


def _run(
    name: str,
    stages: list[Stage],
    whole: bool,
    force: list[str],
    after_data: Callable[[str], None] | None,
) -> Outcome:
    logger, paths = get_run_logger(), Paths()
    parent_run: str | None = None
    seconds: dict[str, float] = {}
    outcome = {"run": "", "version": "", "aliases": "", "decision": ""}
    ended, decision, summary = "KILLED", None, ""
    try:
        for place, stage in enumerate(stages):
            forced = stage.name in force
            if not forced and not needs_run(stage.name):
                logger.info("stage %s is up to date", stage.name, extra={"up_to_date": stage.name})
                continue
            if parent_run is None:
                if any(later.gpu for later in stages[place:]):
                    require_machine(load_params())
                parent_run = outcome["run"] = _open_record(name)
            began = time.monotonic()
            run_stage(stage, forced, parent_run)
            seconds[stage.name] = time.monotonic() - began
            if stage.name == "data" and after_data is not None:
                after_data(parent_run)
        if whole:
            decision = decide_promotion(register_checkpoint(parent_run))
            outcome |= {"version": decision["version"], "decision": decision["headline"]}
            outcome |= {"aliases": ", ".join(decision["aliases"])}
        found = summarize(seconds, [stage.name for stage in stages], decision, paths)
        summary = found.markdown(results_markdown(paths) if whole else "")
        if whole and (parent_run is not None or not paths.run_report.is_file()):
            write_run_report(found, paths)
        ended = "FINISHED"
    except Exception:
        ended = "FAILED"
        raise
    finally:
        if parent_run is not None:
            _close_record(parent_run, ended, whole, paths, summary)
    if whole:
        _show(name, outcome, paths, summary)
        if parent_run is not None:
            push_outputs()
    return outcome


def _open_record(name: str) -> str:
    from convrec.registry.tracking import data_tags, start_pipeline_run

    params = load_params()
    return start_pipeline_run(
        f"{name} {params.common.profile}", {"flow": name, **params.tags(), **data_tags(Paths())}, params.model_dump()
    )


def _close_record(parent_run: str, ended: str, whole: bool, paths: Paths, summary: str) -> None:
    from convrec.registry.tracking import end_pipeline_run

    end_pipeline_run(parent_run, paths, ended, whole, summary)


def _show(name: str, outcome: Outcome, paths: Paths, summary: str) -> None:
    from convrec.registry.tracking import run_address

    show_table(f"{name} results", summary, "The decision, the test results, and the time of each stage")
    address = run_address(outcome["run"]) if outcome["run"] else None
    if address:
        show_link(f"{name} run", address, "The run in MLflow")
        show_link(f"{name} report", f"{address}/artifacts/{paths.run_report.name}", "The report of the run")


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


def _reported(error: BaseException) -> BaseException | None:
    """Return the error to report in one message; None for a bug."""
    return error if isinstance(error, _REPORTED) else outside_cause(error)


def _without_traceback(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if error and (isinstance(error, KeyboardInterrupt) or _reported(error)):
        record.exc_info = None
    return True


def run_or_exit(
    name: str, run: Callable[[], T], check: Callable[[], object], stage_names: Callable[[], list[str]] = list
) -> T:
    """Run a flow and return its outcome; on an error, print one message and exit with the error's status.

    The terminal shows a line for each stage of `stage_names`. Errors of `check`, invalid parameters and unreachable
    servers are reported before a flow run is created.
    """
    from convrec.registry.tracking import connect

    for kind in ("flow_runs", "task_runs"):
        logging.getLogger(f"prefect.{kind}").addFilter(_without_traceback)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # hides messages about a new store
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # hides retries; the outcome is reported
    signal.signal(signal.SIGINT, signal.default_int_handler)  # from now on, Ctrl-C must end a run cleanly
    shown: logging.Handler = logging.NullHandler()
    try:
        profile = load_params().common.profile
        check()
        shown = show_stages(stage_names())
        connect()
        check_server()
        if not has_server():
            start_temporary_server()
        with tags(name, profile):
            return run()
    except KeyboardInterrupt:
        Console(stderr=True).print("[red]interrupted[/red]")
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        reported = _reported(error)
        if reported is None:
            raise
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[red]{escape(str(reported))}[/red]")
        sys.exit(reported.status if isinstance(reported, StageFailed) else exit_status(reported))
    finally:
        shown.close()


def run_and_print(name: str, run: Callable[[], Outcome], check: Callable[[], object]) -> None:
    """Run a flow and print its outcome (see `run_or_exit`)."""
    from convrec.registry.tracking.describe import changed_by_runs

    outcome = run_or_exit(name, run, check, lambda: [stage.name for stage in stages()])
    console = Console(highlight=False, soft_wrap=True)
    if not outcome["run"]:
        console.print("\nNothing to do: every stage is up to date.")
    if outcome["version"]:
        print_summary(Paths())
        console.print(f"Model: convrec-recommender version {outcome['version']} ({outcome['aliases'] or 'no alias'})")
        console.print(f"Decision: {outcome['decision']}")
    if outcome["run"]:
        console.print(f"Run: {outcome['run']}")
    if outcome["version"]:
        console.print(f"Report: {Paths().run_report}")
    console.print(f"Tracking UI: {_tracking_ui()}")
    if changed := changed_by_runs():
        console.print(f"Committed files that differ now (commit them to keep this run): {', '.join(changed)}")
    if outcome["version"]:
        _print_next_steps(console, "champion" in outcome["aliases"])


def _print_next_steps(console: Console, is_champion: bool) -> None:
    """Print commands that can be pasted; a version that is not the champion has to be named."""
    name, items = "" if is_champion else " --model challenger", load_params().common.domain.items
    steps = {
        f'convrec recommend "Some {items}, please"{name}': "ask the model",
        f"convrec app{name}": "ask it in a web page",
        "convrec results": "every metric of the table",
    }
    if os.environ.get("VIRTUAL_ENV") != sys.prefix:
        steps = {"source .venv/bin/activate": "make the command convrec available", **steps}
    console.print("\nNext steps:")
    width = max(map(len, steps))
    for command, purpose in steps.items():
        console.print(f"  {command:<{width}}   # {purpose}", markup=False)


def _tracking_ui() -> str:
    from convrec.registry.tracking import shown_address

    return shown_address("") or "make ui"
