"""`convrec reproduce`: fetches data and models of the published experiment on Reddit-v2, and writes params.yaml."""

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

from convrec.evaluation.published import all_published
from convrec.generation.fetch import fetch
from convrec.generation.hub import latest_commit, model_license
from convrec.project.config.params import Params, parse_params
from convrec.project.config.profiles import apply_profile, compose
from convrec.project.errors import InputError

RAW = Path("data/raw")
DUMP = "ZhankuiHe/reddit_movie_large_v1"  # the raw conversations of Reddit-v2
_MODEL_FILES = ["*.safetensors", "*.json", "*.txt", "*.jinja", "*.model", "LICENSE*"]
_TEST_PROMPTS = 2050  # of Reddit-v2
# What a trial has a share of.
_SHARES = ("demonstrations.train_share", "rank_grpo.num_train_epochs")
_NUMBERS = ("sft.save_steps", "sft.validation_prompts", "rank_grpo.save_steps")
_INSTRUCTION = "Recommend {list_length} {items}."  # the published splits have one in each prompt
_PREFIX = "reddit-"


def reproduce(model: str, data: Path | None, teacher: str | None, scale: float, settings: list[str]) -> Iterator[str]:
    """Prepare a reproduction in the project folder, and yield lines about what was done.

    `data` is the folder of the published splits; without it, the raw dump is fetched. `teacher` is the name of a chat
    model; without it, the teacher is item similarity. `scale` is the share of the published prompts and steps.
    `settings` are `KEY=VALUE`, applied last.

    Raises `InputError` for an unknown model, unusable settings, or files that the hub does not give; params.yaml is
    then unchanged.
    """
    profile = _PREFIX + model
    if profile not in all_published():
        known = ", ".join(name.removeprefix(_PREFIX) for name in all_published() if name.startswith(_PREFIX))
        raise InputError(f"MODEL {model!r}: no published figures; give one of {known}")
    published = parse_params(compose(profile, []), f"profile {profile}")
    similarity = ["demonstrations.teacher.kind=similarity", "demonstrations.teacher.model=null"]
    chosen = _data_settings(data) + ([f"demonstrations.teacher.model={teacher}"] if teacher else similarity)
    chosen += [*(_scaled(published, scale) if scale < 1 else ()), *settings]
    params = parse_params(compose(profile, chosen), f"profile {profile}")
    if data is None and "reddit_movie" in params.data.sources:
        yield fetch("dataset", DUMP, Path(params.data.path))
    if _is_hub_name(name := params.base_model.name):
        folder = RAW / name.split("/")[1]
        yield f"license of {name}: {model_license(name, params.base_model.revision)}"
        yield fetch("model", name, folder, revision=params.base_model.revision, patterns=_MODEL_FILES)
        chosen += [f"base_model.name={folder}"]
    embedder = params.demonstrations.embedder
    if _is_hub_name(embedder.name) and embedder.revision is None:
        chosen += [f"demonstrations.embedder.revision={latest_commit(embedder.name)}"]
    yield apply_profile(profile, chosen)
    if scale < 1:
        yield (
            f"SCALE {scale:g}: a trial of {scale:.1%} of the prompts and steps. Expect the order zero-shot, SFT, "
            "Rank-GRPO and nearly all lines in the catalog, but figures far below the published ones."
        )


def _is_hub_name(name: str) -> bool:
    return name.count("/") == 1 and not Path(name).exists()


def _data_settings(data: Path | None) -> list[str]:
    """Return the settings of the published splits, all rows as they are, or of the raw dump."""
    if data is None:
        values = {"source": "reddit_movie", "path": RAW / "reddit_movie", "catalog": "null"}
        values |= {"validation_period": "2022-11", "test_period": "2022-12"}
        return [*(f"data.{key}={value}" for key, value in values.items()), f"common.instruction={_INSTRUCTION}"]
    if not data.is_dir():
        raise InputError(f"DATA {data}: no such folder; docs/reproduce.md tells what it contains")
    return [f"data.path={data}", "data.checks.seen_truth=keep", "data.checks.leaks=keep"]


def _scaled(published: Params, scale: float) -> list[str]:
    """Return the settings of a share of the published prompts and steps."""
    numbers = {name: attrgetter(name)(published) for name in _NUMBERS}
    numbers |= {"sft.checkpoint_step": published.sft.checkpoint_step or 1, "evaluate.max_prompts": _TEST_PROMPTS}
    if published.rank_grpo.decay is not None:
        numbers["rank_grpo.decay.step"] = published.rank_grpo.decay.step
    values = {name: scale * attrgetter(name)(published) for name in _SHARES}
    values |= {name: max(1, round(scale * number)) for name, number in numbers.items() if number is not None}
    return [f"{name}={value:g}" for name, value in values.items()]
