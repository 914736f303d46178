"""`convrec reproduce`: fetches data and models of the published experiment on Reddit-v2, and writes params.yaml."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from convrec.evaluation.published import PUBLISHED
from convrec.generation.fetch import fetch
from convrec.generation.hub import latest_commit, model_license
from convrec.project.config.params import Params, parse_params
from convrec.project.config.profiles import apply_profile, compose
from convrec.project.errors import InputError

RAW = Path("data/raw")
DUMP = "ZhankuiHe/reddit_movie_large_v1"  # the raw conversations of Reddit-v2
_MODEL_FILES = ["*.safetensors", "*.json", "*.txt", "*.jinja", "*.model", "LICENSE*"]
_TEST_PROMPTS = 2050  # of Reddit-v2
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
    if profile not in PUBLISHED:
        known = ", ".join(name.removeprefix(_PREFIX) for name in PUBLISHED)
        raise InputError(f"MODEL {model!r}: no published figures; give one of {known}")
    published = parse_params(compose(profile, []), f"profile {profile}")
    chosen = [*_data_settings(data), *_teacher_settings(teacher), *_scaled(published, scale), *settings]
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
        dump = {"source": "reddit_movie", "path": RAW / "reddit_movie", "catalog": "null"}
        periods = {"validation_period": "2022-11", "test_period": "2022-12"}
        return [
            *(f"data.{key}={value}" for key, value in {**dump, **periods}.items()),
            f"common.instruction={_INSTRUCTION}",
        ]
    if not data.is_dir():
        raise InputError(f"DATA {data}: no such folder; docs/reproduce.md tells what it contains")
    kept = [f"data.checks.{check}=keep" for check in ("seen_truth", "leaks")]
    return [f"data.path={data}", *kept]


def _teacher_settings(teacher: str | None) -> list[str]:
    if teacher is None:
        return ["demonstrations.teacher.kind=similarity", "demonstrations.teacher.model=null"]
    return [f"demonstrations.teacher.model={teacher}"]


def _scaled(published: Params, scale: float) -> list[str]:
    """Return the settings of a share of the published prompts and steps."""
    if not 0 < scale <= 1:
        raise InputError(f"SCALE {scale:g}: give a share above 0, up to 1")
    if scale == 1:
        return []

    def steps(number: int) -> int:
        return max(1, round(scale * number))

    sft, aligned = published.sft, published.rank_grpo
    values: dict[str, Any] = {
        "demonstrations.train_share": scale * published.demonstrations.train_share,
        "sft.checkpoint_step": steps(sft.checkpoint_step or 1),
        "sft.save_steps": steps(sft.save_steps),
        "rank_grpo.num_train_epochs": scale * aligned.num_train_epochs,
        "rank_grpo.save_steps": steps(aligned.save_steps),
        "rank_grpo.validation_steps": steps(aligned.validation_steps),
        "rank_grpo.validation_prompts": steps(aligned.validation_prompts),
        "evaluate.max_prompts": steps(_TEST_PROMPTS),
    }
    if aligned.decay_step is not None:
        values["rank_grpo.decay_step"] = steps(aligned.decay_step)
    return [f"{key}={value:g}" for key, value in values.items()]
