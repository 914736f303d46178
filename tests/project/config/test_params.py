import subprocess
import sys
from collections.abc import Iterator
from functools import reduce
from typing import Any

import pytest
from ruamel.yaml import YAML

from convrec.pipeline.memory import with_settings
from convrec.project.config.base import Section
from convrec.project.config.params import Params, load_params
from convrec.project.config.profiles import FOLDER, compose
from convrec.project.errors import InputError
from convrec.project.graph import stage_params

DDP = "configs/accelerate/ddp.yaml"


def _changed(**changes: Any) -> Params:
    """Return the parameters of params.yaml with changes; `rank_grpo__beta` is the field `beta` of `rank_grpo`."""
    return with_settings(load_params(), {key.replace("__", "."): value for key, value in changes.items()})


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_every_profile_is_valid(name, tmp_path):
    path = tmp_path / "params.yaml"
    YAML().dump(compose(name, []), path)
    params = load_params(path)
    assert params.common.profile == name
    if params.base_model.name == "embedded":  # no prompt of the longest length is cut for SFT, or passes its positions
        longest = params.common.max_prompt_length + params.common.max_completion_length
        assert longest <= params.sft.max_length <= 2048


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank_grpo__max_stesp": 3}, "rank_grpo.max_stesp: unknown field; remove it, or see profiles/embedded"),
        ({"common__seed": "many"}, "common.seed = 'many': input should be a valid integer"),
        ({"rank_grpo__learning_rate": float("inf")}, "rank_grpo.learning_rate = inf: input should be a finite number"),
        ({"common__list_length": 10}, "cutoffs reach 20"),
        ({"common__max_prompt_length": 63}, "common.max_prompt_length = 63: input should be greater"),
        ({"common__instruction": "Recommend {n}."}, "common.instruction: 'Recommend {n}.' has braces beside"),
        ({"common__domain__item": "{movie}"}, "common.domain.item = '{movie}': string should match pattern"),
        ({"sft__max_length": 84}, "sft.max_length = 84 has no room for a list; give 85"),
        ({"sft__lists": "teacher"}, "sft.lists = 'teacher': input should be 'remap', 'reflect',"),
        (
            {"evaluate__constrained": False},
            "evaluate.constrained = false: free lists are titles as text; set common.item",
        ),
        ({"sft__likes": False}, "likes = false and demonstration_weight = 0.0 leave nothing to learn; change one of"),
        ({"data__test_period": "2022-12-01"}, "data.test_period: '2022-12-01' is neither a month nor"),
        ({"data__test_period": None}, "data: set both validation_period and test_period, or set both"),
        (
            {"data__test_period": "2022-11-30/2022-12-06"},
            "data: validation_period = 2022-11 does not end before 2022-11-30",
        ),
        ({"data__source": "amazon"}, "catalog is empty; source 'amazon' needs the name of its file in data.path"),
        (
            {"data__source": ["amazon", "feedback"], "data__catalog": "info/x.txt"},
            "source = ['amazon', 'feedback']: amazon has splits of its own; use it alone",
        ),
        ({"data__line_column": "genres"}, "line_column = 'genres' names a column of the catalog of source 'files' or"),
        ({"data__source": ["synthetic", "interactions"], "data__line_column": ""}, "line_column = '' names a column"),
        ({"data__source": "feedback"}, "source = 'feedback': feedback has no catalog; give [SOURCE, feedba"),
        ({"data__interactions__disliked": 4.0}, "data.interactions: disliked = 4.0 is not below liked = 4.0; lower it"),
        ({"rank_grpo__returns": "exp:1"}, "returns = 'exp:1': GAMMA must be above 1"),
    ],
)
def test_mistakes_name_field_value_and_remedy(changes, message):
    with pytest.raises(InputError) as error:
        _changed(**changes)
    assert str(error.value).startswith("params.yaml: ") and message in str(error.value)


@pytest.mark.parametrize(
    ("changes", "factors"),
    [
        ({}, None),
        ({"rank_grpo__num_processes": 2}, " * num_processes = 4 is"),
        ({"rank_grpo__launch": None}, " = 2 is"),  # one process, whatever num_processes says
    ],
)
def test_groups_are_whole_over_the_processes(changes, factors):
    launched = {"rank_grpo__launch": DDP, "rank_grpo__num_processes": 4}
    sizes = {"rank_grpo__per_device_train_batch_size": 2, "rank_grpo__num_generations": 8}
    given = {**launched, **sizes, **changes}
    if factors is None:
        assert _changed(**given).rank_grpo.num_generations == 8
        return
    with pytest.raises(InputError, match="no multiple of num_generations = 8") as error:
        _changed(**given)
    assert f"per_device_train_batch_size * gradient_accumulation_steps{factors}" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"constrained": False}, "constrained = false: algorithm 'dpo' needs"),
        ({"rollouts": "vllm_colocate"}, 'rollouts = "vllm_colocate": .* set it to "transformers"'),
        ({"launch": DDP, "num_processes": 2}, "launch = .*ddp.yaml.: .* set it to null"),
        ({"per_device_train_batch_size": 9}, "per_device_train_batch_size = 9 is no multiple of num_generations = 2"),
    ],
)
def test_what_preferences_cannot_be_learnt_with_is_refused(changes, message):
    params = _changed(rank_grpo__algorithm="dpo", rank_grpo__constrained=True, rank_grpo__num_generations=2)
    with pytest.raises(InputError, match=message):
        with_settings(params, {f"rank_grpo.{name}": value for name, value in changes.items()})


def test_periods_are_read_from_text_and_dumped_as_text():
    days = ["2022-11-01", "2022-12-01", "2023-01-01"]
    assert [str(day) for day in load_params().data.split_days()] == days, "validation ends where the test begins"
    params = _changed(data__validation_period="2022-11-08/2022-11-14")
    assert [str(day) for day in params.data.split_days()] == ["2022-11-08", "2022-11-15", *days[1:]]
    assert params.model_dump()["data"]["validation_period"] == "2022-11-08/2022-11-14"
    none = {"data__validation_period": None, "data__test_period": None}
    assert _changed(data__source="files", data__catalog="catalog.csv", **none).data.split_days() == []


def test_every_whole_number_has_bounds():
    unbounded = []

    def visit(schema, place):
        if isinstance(schema, dict):
            least, most = {"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}
            if schema.get("type") == "integer" and not (least & schema.keys() and most & schema.keys()):
                unbounded.append(place)
        parts = schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list) else ()
        for name, part in parts:
            visit(part, f"{place}.{name}")

    visit(Params.model_json_schema(), "")
    assert not unbounded


def test_config_imports_no_torch():
    imports = "import sys, convrec.project.config.params, convrec.cli"
    code = f"{imports}; sys.exit(not {{'torch', 'mlflow'}}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_instruction_is_in_the_domain_s_words():
    common = _changed(common__domain__items="board games").common
    assert common.prompt_instruction == "Recommend {list_length} board games."
    assert _changed(common__instruction=None).common.prompt_instruction is None


# Fields of common and of both trainings that change neither what is trained nor which checkpoint is taken.
UNKEYED = {
    *("common.profile", "common.domain.release", "common.domain.people", "common.recommend_seen"),
    *("common.item_tokens", "common.device", "base_model.trust_remote_code"),
    *("sft.save_steps", "sft.gradient_checkpointing", "rank_grpo.gradient_checkpointing"),
    *("rank_grpo.vllm_server_base_url", "evaluate.vllm_gpu_memory_utilization"),
}
OF_ONE_PROCESS = {"launch", "num_processes"}  # without a launch, the number of processes is not used


def _leaves(section: Section, prefix: str = "") -> Iterator[str]:
    for name, value in section:
        yield from _leaves(value, f"{prefix}{name}.") if isinstance(value, Section) else [prefix + name]


def _with(section: Section, path: str, value: object) -> Section:
    """Return the section with another value, which need not be an allowed one."""
    name, _, rest = path.partition(".")
    return section.model_copy(update={name: _with(getattr(section, name), rest, value) if rest else value})


@pytest.mark.parametrize("stage", ["sft", "rank_grpo"])
def test_a_training_is_keyed_by_all_declared_parameters_that_can_change_it(stage):
    params = stage_params(load_params(), stage)
    unkeyed = UNKEYED | ({"common.cutoffs", "common.repetition_penalty"} if stage == "sft" else set())
    paths = list(_leaves(params))
    assert len(paths) > 30 and {path for path in unkeyed if path.startswith(("common", "base_model"))} <= set(paths)
    for path in paths:
        value = reduce(getattr, path.split("."), params)
        changed = _with(params, path, value + 1 if isinstance(value, int | float) else "another")
        same = path in unkeyed or path.rpartition(".")[2] in OF_ONE_PROCESS
        assert (changed.keyed(stage) == params.keyed(stage)) == same, path


def test_a_batch_is_keyed_by_its_size_however_it_is_split_over_steps_and_processes():
    one = _changed(sft__per_device_train_batch_size=8, sft__gradient_accumulation_steps=2)
    several = _changed(sft__per_device_train_batch_size=4, sft__num_processes=4, sft__launch=DDP)
    other = _changed(sft__per_device_train_batch_size=4, sft__num_processes=2, sft__launch=DDP)
    keys = [params.sft.keyed("sft") for params in (one, several, other)]
    assert keys[0] == keys[1] != keys[2] and keys[0]["rows_per_step"] == 16


def test_a_stage_is_given_the_declared_parameters_alone():
    params = load_params()
    given = stage_params(params, "guidance")
    assert given.guidance == params.guidance and given.rank_grpo.constrained == params.rank_grpo.constrained
    for section, name in ((given, "sft"), (given, "data"), (given.rank_grpo, "start"), (given.base_model, "dtype")):
        with pytest.raises(AttributeError, match=name):
            getattr(section, name)
    assert stage_params(given, "guidance") == given
    with pytest.raises(InputError, match=r"dvc.yaml: stages.other.params is missing; list what the stage reads"):
        stage_params(params, "other")


def test_evidence_takes_no_embedder_that_runs_code():
    named = _changed(demonstrations__embedder__name="a/model", demonstrations__embedder__revision="abc")
    assert named.evidence_embedder() == {"name": "a/model", "revision": "abc"}
    foreign = _changed(demonstrations__embedder__name="a/model", demonstrations__embedder__trust_remote_code=True)
    assert foreign.evidence_embedder() == {"name": "tfidf"}
    assert foreign.baseline_options()["embedder"]["name"] == "a/model"


@pytest.mark.parametrize(
    ("sources", "ordered"), [("interactions", True), (["interactions", "feedback"], False), ("synthetic", False)]
)
def test_histories_have_an_order_if_all_sources_have_one(sources, ordered):
    params = _changed(data__source=sources)
    assert params.baseline_options()["ordered"] == params.data.is_ordered == ordered
