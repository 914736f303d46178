import json
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from convrec.project.config.params import Params, load_params, parse_params
from convrec.project.config.profiles import compose, profile_names
from convrec.project.errors import InputError

PARAMS = Path("params.yaml")


def _changed(tmp_path: Path, old: str, new: str) -> Path:
    text = PARAMS.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "params.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


def test_a_profile_that_is_not_there_is_told(tmp_path):
    with pytest.raises(InputError, match="no profile 'nosuch'; there are embedded, "):
        compose("nosuch", [])
    with pytest.raises(InputError, match="run the command in the project folder"):
        compose("embedded", [], tmp_path / "profiles")


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_is_valid(name, tmp_path):
    path = tmp_path / "params.yaml"
    YAML().dump(compose(name, []), path)
    params = load_params(path)
    assert params.common.profile == name
    if params.base_model.name == "embedded":  # no prompt of the longest length is cut for SFT, or passes its positions
        completion = max(params.rank_grpo.max_completion_length, params.evaluate.max_completion_length)
        assert params.common.max_prompt_length + completion <= params.sft.max_length <= 2048


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_steps: ", "max_stesp: ", "rank_grpo.max_stesp: unknown field; did you mean 'max_steps'?"),
        ("seed: 17", "seed: seventeen", "common.seed = 'seventeen': input should be a valid integer"),
        ("  num_generations: 4 ", "  num_generations: 7 ", "no multiple of num_generations = 7"),
        ("returns: exp_inf", "returns: exp", "return_gamma = None"),
        (
            "  lora: null\n",
            "  lora: {r: 4, lora_alpha: 8, lora_dropout: 0.05}\n",
            "rank_grpo: lora.lora_dropout = 0.05: sampling and scoring must use the same distribution",
        ),
        ("cutoffs: [5, 10, 20]", f"cutoffs: {[5] * 2000}", "list should have at most 100 items"),
        ("list_length: 20", "list_length: 10", "cutoffs reach 20"),
        ("max_prompt_length: 448", "max_prompt_length: 63", "common.max_prompt_length = 63: input should be greater"),
        ("  max_length: 512", "  max_length: 103", "yaml: sft.max_length = 103 has no room for a prompt (64 tokens"),
        ("  lists: reflect", "  lists: teacher", "sft.lists = 'teacher': input should be 'remap', 'reflect',"),
        (
            "  ground_truth_first: false",
            "  ground_truth_first: true",
            "puts the ground truth into the lists of adjust, but sft.lists = reflect; set sft.lists to adjust",
        ),
        (
            "test_period: 2022-12",
            "test_period: 2022-12-01",
            "data.test_period: '2022-12-01' is neither a month nor",
        ),
        ("test_period: 2022-12", "test_period: null", "data: set both validation_period and test_period, or set both"),
        (
            "test_period: 2022-12",
            "test_period: 2022-11-30/2022-12-06",
            "data: validation_period = 2022-11 does not end before test_period = 2022-11-30/2022-12-06 begins; "
            "give a period before 2022-11-30",
        ),
        ("source: synthetic", "source: reddit", "catalog is empty"),
        ("source: synthetic", "source: feedback", "source = 'feedback': feedback has no catalog; give [SOURCE, feedba"),
        ("source: synthetic", "source: [synthetic, synthetic]", "a source is given twice; remove one"),
        ("    max_liked: 6", "    max_liked: 1", "data.interactions: min_liked = 2 is more than max_liked = 1"),
        (
            "    disliked: 2.0",
            "    disliked: 4.0",
            "data.interactions: disliked = 4.0 is not below liked = 4.0; lower it",
        ),
        (
            "{list_length} {items}.",
            "{n} {items}.",
            "common.instruction: 'Recommend {n} {items}.' has braces beside",
        ),
        ("    item: movie", "    item: '{movie}'", "common.domain.item = '{movie}': string should match pattern"),
        (
            "  lora: null ",
            "  lora: {r: 8, lora_alhpa: 16, lora_dropout: 0.0} ",
            "sft.lora.lora_alhpa: unknown field; did you mean 'lora_alpha'?",
        ),
    ],
)
def test_mistakes_name_field_value_and_remedy(tmp_path, old, new, message):
    with pytest.raises(InputError) as error:
        load_params(_changed(tmp_path, old, new))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("changes", "factors"),
    [
        ({}, None),
        ({"num_processes": 2}, " * num_processes = 4 is"),
        ({"launch": None}, " = 2 is"),  # one process, whatever num_processes says
        ({"rollouts": "beam"}, " = 2 is"),
    ],
)
def test_groups_are_whole_over_the_processes(changes, factors):
    raw = load_params().model_dump()
    launch = {"launch": "configs/accelerate/ddp.yaml", "num_processes": 4}
    raw["rank_grpo"] |= {**launch, "per_device_train_batch_size": 2, "num_generations": 8, **changes}
    if factors is None:
        assert parse_params(raw, "test").rank_grpo.per_device_train_batch_size == 2
        return
    with pytest.raises(InputError, match="no multiple of num_generations = 8") as error:
        parse_params(raw, "test")
    assert f"per_device_train_batch_size * gradient_accumulation_steps{factors}" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"constrained": False}, "constrained = false: algorithm 'sprec' compares catalog lists"),
        ({"rollouts": "beam"}, 'rollouts = "beam": .* set it to "transformers"'),
        ({"num_iterations": 2, "save_steps": 2, "validation_steps": 2}, "num_iterations = 2: .* set it to 1"),
        ({"launch": "configs/accelerate/ddp.yaml", "num_processes": 2}, "launch = .*ddp.yaml.: .* set it to null"),
        (
            {"per_device_train_batch_size": 9},
            "per_device_train_batch_size = 9 is no multiple of 2, the lists of a prompt",
        ),
        ({"algorithm": "sdpo", "per_device_train_batch_size": 6}, "is no multiple of 4, the lists of a prompt"),
        (
            {"lora": {"r": 2, "lora_alpha": 2, "lora_dropout": 0.0}},
            "lora: algorithm 'sprec' changes the reference's weights",
        ),
        ({"max_steps": 9}, "max_steps = 9 has no room for preferences.rounds = 5 of two phases each; raise it to 10"),
    ],
)
def test_what_preferences_cannot_be_learnt_with_is_refused(changes, message):
    raw = load_params().model_dump()
    good = {"algorithm": "sprec", "constrained": True, "max_steps": 10}
    raw["rank_grpo"] |= good
    assert parse_params(raw, "test").rank_grpo.group_size == 2
    raw["rank_grpo"] |= changes
    with pytest.raises(InputError, match=message):
        parse_params(raw, "test")


@pytest.mark.parametrize(
    ("field", "value"),
    [("learning_rate", ".inf"), ("noise", "-.inf"), ("temperature", ".nan"), ("warmup_steps", ".inf")],
)
def test_no_parameter_takes_a_number_that_is_not_finite(tmp_path, field, value):
    (line, *_) = (
        line for line in PARAMS.read_text(encoding="utf-8").splitlines() if line.lstrip().startswith(f"{field}:")
    )
    with pytest.raises(InputError, match=rf"\.{field} = -?(inf|nan): input should be a finite number"):
        load_params(_changed(tmp_path, line, f"{line.partition(':')[0]}: {value}"))


def test_numbers_are_read_as_dvc_reads_them(tmp_path):
    assert load_params(_changed(tmp_path, "beta: 0.01", "beta: 1e-2")).rank_grpo.beta == 1e-2


def test_periods_are_read_from_text_and_dumped_as_text(tmp_path):
    data = load_params().data
    days = ["2022-11-01", "2022-12-01", "2023-01-01"]
    assert [str(day) for day in data.split_days()] == days, "the end of validation is the beginning of the test"
    path = _changed(tmp_path, "validation_period: 2022-11 ", "validation_period: 2022-11-08/2022-11-14 ")
    params = load_params(path)
    assert [str(day) for day in params.data.split_days()] == ["2022-11-08", "2022-11-15", *days[1:]]
    raw = json.loads(json.dumps(params.model_dump()))
    assert (raw["data"]["validation_period"], raw["data"]["test_period"]) == ("2022-11-08/2022-11-14", "2022-12")
    assert parse_params(raw, "test") == params
    raw["data"] |= {"source": "files", "catalog": "catalog.csv", "validation_period": None, "test_period": None}
    assert parse_params(raw, "test").data.split_days() == []


def test_missing_file_and_broken_yaml(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_params(tmp_path / "params.yaml")
    (tmp_path / "params.yaml").write_text("common: [", encoding="utf-8")
    with pytest.raises(InputError, match="not YAML"):
        load_params(tmp_path / "params.yaml")


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


def test_the_instruction_is_in_the_domain_s_words(tmp_path):
    common = load_params(_changed(tmp_path, "    items: movies", "    items: board games")).common
    assert common.prompt_instruction == "Recommend {list_length} board games."
    assert common.prompt_parameters()["instruction"] == common.prompt_instruction
    assert load_params().common.prompt_instruction == "Recommend {list_length} movies."
    assert (
        load_params(_changed(tmp_path, "instruction: Recommend", "instruction: null #")).common.prompt_instruction
        is None
    )
