"""`convrec STAGE`: run one stage of the pipeline, or manage profiles. Heavy imports wait until they are needed."""

import argparse
import importlib
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any, Literal

from convrec.commands import registry, tracking, workspace
from convrec.config import Params, load_params, read_yaml
from convrec.errors import InputError, Stopped, exit_status, outside_cause
from convrec.paths import Paths
from convrec.profiles import apply_profile, profile_names
from convrec.training.launch import end_processes, end_with_parent, is_launched, is_main_process, is_supervised, launch
from convrec.workspaces import hold_stage

STAGES = ("data", "demonstrations", "base_model", "sft", "rank_grpo", "evaluate", "report")
SPLITS = ("train", "validation", "test")
CHAMPION_URI = "models:/convrec-recommender@champion"


def _set_up() -> None:
    """Set logging, and quiet the libraries: the only place where global state is set. Seeds are passed on."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("convrec").setLevel(logging.INFO)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # of every try at a server that is away; the outcome is told
    for name, value in {
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "TQDM_DISABLE": "1",  # stages say how far they are on their own
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
    }.items():
        os.environ.setdefault(name, value)


def _stop(number: int, _frame: Any) -> None:
    raise Stopped(f"stopped by {signal.Signals(number).name}; start again to go on")


def _check_inputs(stage: str, graph: Path = Path("dvc.yaml")) -> None:
    """Raise `InputError` where an out of another stage that this one reads is not there."""
    stages = read_yaml(graph).get("stages", {}) if graph.is_file() else {}
    entries = [entry for other in stages.values() for entry in other.get("outs", [])]
    outs = {name for entry in entries for name in ([entry] if isinstance(entry, str) else entry)}
    missing = [name for name in stages.get(stage, {}).get("deps", []) if name in outs and not Path(name).exists()]
    if missing:
        told = f"run `dvc repro {stage}`, which first makes what the stage reads"
        raise InputError(f"{', '.join(missing)}: not made yet; {told}")


def _run_stage(stage: str, params: Params) -> None:
    _set_up()
    if "RANK" not in os.environ:
        _check_inputs(stage)
        hold_stage(stage)
    section = getattr(params, stage)
    if is_launched(section):
        sys.exit(launch(stage, section))
    signal.signal(signal.SIGTERM, _stop)  # so that the record is closed; trainings write a checkpoint first
    if not is_main_process():
        from convrec.tracking import SilentRun

        importlib.import_module(f"convrec.stages.{stage}").run(params, Paths(), SilentRun())
        end_processes()
        return
    from convrec.tracking import run_tags, stage_run

    own = getattr(params, stage).model_dump()
    paths = Paths()
    values = {"common": params.common.model_dump(), stage: own}
    with stage_run(stage, values, run_tags(params, paths), paths.run_id(stage)) as record:
        importlib.import_module(f"convrec.stages.{stage}").run(params, paths, record)
        end_processes()


def _add_data_commands(data: argparse.ArgumentParser) -> None:
    """Add what `convrec data` does beside the stage: versions of the data, and samples of it."""
    data.epilog = "Without a subcommand, the stage is run."
    commands = data.add_subparsers(dest="data_command", metavar="SUBCOMMAND")
    difference = commands.add_parser("diff", help="show what changed from one version of the data to another")
    version = "a git revision, a folder as data/processed, a catalog file, or `workspace`"
    difference.add_argument("old", metavar="OLD", help=version)
    difference.add_argument(
        "new", metavar="NEW", nargs="?", default="workspace", help="the same; the workspace if none"
    )
    difference.add_argument("--json", type=Path, metavar="FILE", help="write the whole of it as JSON, too")
    difference.add_argument("--limit", type=int, default=20, help="names shown of each kind of change")
    restore = commands.add_parser("restore", help="bring back the data and the parameters of a past run")
    restore.add_argument("--run", required=True, metavar="RUN_ID", help="of a pipeline's or a stage's MLflow run")
    restore.add_argument("--force", action="store_true", help="even over changes that git does not hold; they are kept")
    sample = commands.add_parser("sample", help="write the embedded world as monthly files in the project's schema")
    sample.add_argument("folder", type=Path, metavar="FOLDER")
    sample.add_argument("--until", default="2022-12", metavar="MONTH", help="the last month, of 2022")
    sample.add_argument("--conversations", type=int, default=14_400, help="of the whole year")
    sample.add_argument("--seed", type=int, default=17)
    fetch = commands.add_parser("fetch", help="download a public dataset from the Hugging Face hub, pinned and checked")
    _add_fetch_options(fetch)


def _add_fetch_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="of the repository, e.g. ZhankuiHe/reddit_movie_large_v1")
    command.add_argument("--to", type=Path, required=True, metavar="FOLDER")
    command.add_argument("--revision", help="commit, tag or branch; that of FOLDER.lock.json, or main, if not given")
    command.add_argument("--include", action="append", metavar="PATTERN", help="only files of this pattern")


def _run_data_command(options: argparse.Namespace) -> None:
    _set_up()
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    if options.data_command == "diff":
        from convrec.versions.diff import diff

        found = diff(options.old, options.new)
        if options.json is not None:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(found.to_json(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        print(found.to_text(options.limit))
    elif options.data_command == "restore":
        from convrec.versions.restore import restore

        print(restore(options.run, force=options.force))
    elif options.data_command == "sample":
        from convrec.data.sample import write_sample

        if options.conversations < 1:
            raise InputError(f"--conversations {options.conversations}: give 1 or more")
        written = write_sample(options.folder, options.until, options.conversations, options.seed)
        print(f"{options.folder}: {len(written)} new files: {', '.join(path.name for path in written) or 'none'}")
    else:
        _fetch("dataset", options)


def _fetch(kind: Literal["dataset", "model"], options: argparse.Namespace) -> None:
    from convrec.versions.fetch import fetch

    print(fetch(kind, options.name, options.to, revision=options.revision, patterns=options.include))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="convrec", description="Train and test LLM conversational recommenders.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for stage in STAGES:
        help_text = f"run the stage `{stage}` with params.yaml (usually through `dvc repro`)"
        command = commands.add_parser(stage, help=help_text, description=help_text)
        if stage == "data":
            _add_data_commands(command)
        elif stage == "evaluate":
            _add_evaluate_options(command)
    profile = commands.add_parser("profile", help="make params.yaml from a profile")
    profile.add_argument("name", choices=profile_names() or None, help="a file of profiles/, without .yaml")
    profile.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a parameter, e.g. data.path=../redial",
    )
    comparison = commands.add_parser("compare", help="train algorithms from the same SFT model, over seeds")
    comparison.add_argument(
        "--algorithms",
        default="rank_grpo:exp_inf,rank_grpo:log,grpo,gspo",
        metavar="NAMES",
        help="separated by commas: rank_grpo:RETURNS (exp_inf, log, exp:GAMMA), grpo, gspo, dr_grpo, dapo",
    )
    comparison.add_argument("--seeds", type=int, default=3, help="runs of each, from common.seed on")
    comparison.add_argument("--steps", type=int, help="steps of each run; rank_grpo.num_steps where it is not given")
    ablation = commands.add_parser("ablate-demonstrations", help="train SFT on the lists after each step, and compare")
    ablation.add_argument("--seeds", type=int, default=1, help="runs of each, from common.seed on")
    parse = commands.add_parser("parse", help="show what is read of a language model's answers, and what is dropped")
    remap = commands.add_parser(
        "remap", help="ground a language model's answers in a catalog: rows of items and scores"
    )
    for command in (parse, remap):
        command.add_argument(
            "--responses", type=Path, required=True, help="JSON lines of {conversation, response, seen?}"
        )
        command.add_argument("--catalog", type=Path, default=Paths().catalog, help="CSV, JSON lines, Parquet or pickle")
        command.add_argument("--min-ratio", type=float, default=85.0, help="of a fuzzy title match whose year fits")
        command.add_argument("--min-ratio-without-year", type=float, default=97.0, help="of one without a year")
    parse.add_argument("--out", type=Path, help="write the same as JSON lines")
    remap.add_argument(
        "--out", type=Path, required=True, help="the same rows with `items`: rank, title, year, score, source"
    )
    remap.add_argument("--top", type=int, default=20, help="items a list")
    remap.add_argument("--embedder", default="tfidf", help="tfidf, or a sentence-transformers model")
    remap.add_argument("--conversation-weight", type=float, default=1.0, help="lambda")
    model = commands.add_parser("fetch-model", help="download a model from the Hugging Face hub, pinned and checked")
    _add_fetch_options(model)
    _add_score_options(commands.add_parser("score", help="score a file of anybody's lists against their ground truth"))
    _add_recommender_commands(commands)
    workspace.add(commands)
    registry.add(commands)
    commands.add_parser("results", help="print the results table of the last evaluation")
    tracking.add(commands)
    return parser


def _add_evaluate_options(command: argparse.ArgumentParser) -> None:
    """Add what `convrec evaluate` does beside the stage: any model, or the checkpoints of a training."""
    command.description = (
        "Score any model, or the checkpoints of a training; without options, run the stage `evaluate`."
    )
    what = command.add_mutually_exclusive_group()
    what.add_argument(
        "--model",
        action="append",
        metavar="MODEL",
        help="score a Hugging Face folder or name, or a registry version (models:/NAME@ALIAS); may be repeated",
    )
    what.add_argument("--checkpoints", metavar="STAGES", help="score the kept checkpoints of sft, rank_grpo, or both")
    command.add_argument("--every", type=int, metavar="STEPS", help="of checkpoints: those of every so many steps")
    command.add_argument(
        "--split", choices=SPLITS, help="test for --model and validation for --checkpoints, if not given"
    )
    command.add_argument("--max-prompts", type=int, metavar="N", help="the first N prompts, for evaluate.max_prompts")
    command.add_argument("--engine", choices=("transformers", "vllm"), help="for evaluate.engine")
    command.add_argument("--constrained", action="store_true", help="of --model: lists from the catalog alone")
    command.add_argument("--json", action="store_true", help="print one JSON object a model, or one of all checkpoints")


def _is_ad_hoc(options: argparse.Namespace) -> bool:
    """Return whether `convrec evaluate` is to do anything but the stage."""
    names = ("model", "checkpoints", "every", "split", "max_prompts", "engine", "constrained", "json")
    values = [getattr(options, name) for name in names]
    return any(value is not None and value is not False for value in values)  # 0 and "" are given, too


def _run_evaluation(options: argparse.Namespace) -> None:
    if not options.model and options.checkpoints is None:
        raise InputError("its options are of --model or --checkpoints: give one of these")
    if options.every is not None and (options.every < 1 or options.checkpoints is None):
        raise InputError(f"--every {options.every}: give 1 or more, and --checkpoints")
    if options.constrained and not options.model:
        raise InputError("--constrained: give --model, too; checkpoints are scored as training scores them")
    _set_up()
    from convrec.evaluate_models import evaluate_models, print_evaluations, with_options

    params = with_options(load_params(), options.max_prompts, options.engine)
    if options.model:
        results = evaluate_models(params, Paths(), options.model, options.split or "test", options.constrained)
        if not options.json:
            print_evaluations(results)
    else:
        from convrec.evaluate_checkpoints import evaluate_checkpoints, print_checkpoints

        stages = options.checkpoints.split(",")
        split = options.split or "validation"
        results = [evaluate_checkpoints(params, Paths(), stages, options.every, split)]
        if not options.json:
            print_checkpoints(results[0])
    for result in results if options.json else ():
        print(json.dumps(result, ensure_ascii=False))


def _add_score_options(command: argparse.ArgumentParser) -> None:
    command.description = "Score a file of anybody's lists against their ground truth (docs/evaluation.md)."
    command.add_argument(
        "--predictions",
        type=Path,
        required=True,
        metavar="FILE",
        help="JSON lines of {response or items, groundtruth, seen_titles?, prompt_id?}",
    )
    catalog = "CSV, JSON lines, Parquet or pickle; the project's own, if not given"
    command.add_argument("--catalog", type=Path, default=Paths().catalog, help=catalog)
    protocols = "evaluation drops seen and unknown lines and closes the ranks, reward keeps every line at its rank"
    command.add_argument("--protocol", choices=("evaluation", "reward"), default="evaluation", help=protocols)
    command.add_argument("--cutoffs", metavar="K,...", help="those of Recall@K and so on: 5,10,15,20 up to N, or N")
    command.add_argument("--list-length", type=int, default=20, metavar="N", help="the ranks that count: %(default)s")
    tolerance = "years by which a title's year may be off: %(default)s"
    command.add_argument("--year-tolerance", type=int, default=2, metavar="YEARS", help=tolerance)
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _run_score(options: argparse.Namespace) -> None:
    if options.list_length < 1:
        raise InputError(f"--list-length {options.list_length}: give 1 or more")
    try:
        given = options.cutoffs.split(",") if options.cutoffs is not None else ()
        cutoffs = sorted({int(cutoff) for cutoff in given})
    except ValueError:
        raise InputError(f"--cutoffs {options.cutoffs}: give whole numbers with commas between, as 5,10") from None
    cutoffs = cutoffs or [k for k in (5, 10, 15, 20) if k <= options.list_length] or [options.list_length]
    if cutoffs[0] < 1 or cutoffs[-1] > options.list_length:
        raise InputError(
            f"--cutoffs {options.cutoffs}: give numbers from 1 to --list-length {options.list_length}, or raise that"
        )
    if options.year_tolerance < 0:
        raise InputError(f"--year-tolerance {options.year_tolerance}: give 0 or more")
    if not options.predictions.is_file():
        raise InputError(f"--predictions {options.predictions}: no such file, or a folder; name a JSON-lines file")
    _set_up()
    from convrec.data.catalog_files import open_catalog
    from convrec.evaluation.predictions import Settings, print_scores, score_predictions

    settings = Settings(cutoffs, options.list_length, options.protocol, options.year_tolerance)
    catalog, told = open_catalog(options.catalog)
    logging.getLogger("convrec.score").info("%s", told)
    scores = score_predictions(options.predictions, catalog, settings)
    if options.json:
        print(json.dumps(scores.to_json()))
    else:
        print_scores(scores, settings)


def _command(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    return commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]} (docs/recommender.md).")


def _add_recommender_commands(commands: Any) -> None:
    """Add the ways to ask a model: once, in a session, in a page."""
    recommend = _command(commands, "recommend", "answer a conversation with a ranked list")
    chat = _command(commands, "chat", "ask for recommendations in a session, turn by turn")
    app = _command(commands, "app", "serve a page for conversations, champion and challenger side by side")
    recommend.add_argument(
        "conversation",
        metavar="CONVERSATION",
        help="a user's words, or `User: …` and `Assistant: …` lines; - for stdin",
    )
    for command in (recommend, chat):
        command.add_argument("-n", type=int, default=20, help="items of a list: %(default)s")
        command.add_argument("--deny", action="append", default=[], metavar="TITLE", help="never this; repeatable")
        command.add_argument("--allow", action="append", metavar="TITLE", help="nothing but this; repeatable")
    recommend.add_argument("--json", action="store_true", help="print one JSON array")
    for command in (recommend, chat, app):
        command.add_argument(
            "--model", metavar="NAME", help=f"models:/NAME@ALIAS or a folder: {CHAMPION_URI}, if not given"
        )
    app.add_argument("--challenger", metavar="NAME", help="the second model; `none` for one alone")
    app.add_argument("--host", default="127.0.0.1")
    app.add_argument("--port", type=int, default=7860)


def _run_recommender(options: argparse.Namespace) -> None:
    """Run `recommend`, `chat` or `app`."""
    _set_up()
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if options.command == "app":
        from convrec.app.server import serve

        serve(options.model, options.challenger, options.host, options.port)
        return
    from convrec.recommender import as_json, as_table, open_recommender

    if options.command == "recommend":
        said = sys.stdin.read() if options.conversation == "-" else options.conversation
        recommender = open_recommender(options.model or CHAMPION_URI)
        answer = recommender.recommend([said], options.n, options.deny, options.allow)[0]
        print(as_json(answer) if options.json else as_table(answer))
        return
    from convrec.session import HELP, Session

    try:
        recommender = open_recommender(options.model or CHAMPION_URI)
        for name in ("deny", "allow"):
            recommender.check_titles(f"--{name}", getattr(options, name) or ())
        session = Session(recommender, options.n, options.deny, options.allow)
        print(HELP)
        while not session.is_over:
            print(session.answer(input("> ")))
    except (EOFError, KeyboardInterrupt):
        print()


def _run_responses(options: argparse.Namespace) -> None:
    """Run `parse` or `remap`; a reader that stops early, such as `head`, is no error."""
    for name in ("min_ratio", "min_ratio_without_year"):
        if not 0 < getattr(options, name) <= 100:
            raise InputError(f"--{name.replace('_', '-')} {getattr(options, name)}: give a number up to 100")
    _set_up()
    from convrec.responses import print_parsed, remap_responses

    grounding = (options.min_ratio, options.min_ratio_without_year)
    if options.command == "parse":
        try:
            for line in print_parsed(options.responses, options.catalog, grounding, options.out):
                print(line)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if options.top < 1:
        raise InputError(f"--top {options.top}: give 1 or more")
    if not 0 <= options.conversation_weight < float("inf"):
        raise InputError(f"--conversation-weight {options.conversation_weight}: give a number from 0")
    print(
        remap_responses(
            options.responses,
            options.catalog,
            options.out,
            top=options.top,
            embedder=options.embedder,
            conversation_weight=options.conversation_weight,
            grounding=grounding,
        )
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; mistakes of the user end with one message and status 2, what may be back later with 75."""
    options = _parser().parse_args(arguments)
    if is_supervised():
        end_with_parent()
    try:
        if options.command == "profile":
            print(apply_profile(options.name, options.set))
        elif options.command == "compare":
            if options.seeds < 1:
                raise InputError(f"--seeds {options.seeds}: give 1 or more")
            _set_up()
            from convrec.compare import compare

            page = compare(load_params(), Paths(), options.algorithms.split(","), options.seeds, options.steps)
            print(f"Curves: {page}")
        elif options.command == "ablate-demonstrations":
            if options.seeds < 1:
                raise InputError(f"--seeds {options.seeds}: give 1 or more")
            _set_up()
            from convrec.ablation import ablate

            print(f"As JSON: {ablate(load_params(), Paths(), options.seeds)}")
        elif options.command in ("parse", "remap"):
            _run_responses(options)
        elif options.command in ("recommend", "chat", "app"):
            _run_recommender(options)
        elif options.command == "data" and options.data_command:
            _run_data_command(options)
        elif options.command == "evaluate" and _is_ad_hoc(options):
            _run_evaluation(options)
        elif options.command == "fetch-model":
            _set_up()
            _fetch("model", options)
        elif options.command == "workspace":
            workspace.run(options)
        elif options.command == "score":
            _run_score(options)
        elif options.command == "tracking":
            _set_up()
            sys.exit(tracking.run(options))
        elif options.command in registry.COMMANDS:
            _set_up()
            sys.exit(registry.run(options))
        elif options.command == "results":
            from convrec.evaluation.table import print_results

            print_results(Paths())
        else:
            _run_stage(options.command, load_params(Path("params.yaml")))
    except Exception as error:
        told = error if exit_status(error) else outside_cause(error)
        if told is None:
            raise
        print(f"convrec {options.command}: {told}", file=sys.stderr)
        sys.exit(exit_status(told))


if __name__ == "__main__":
    main()
