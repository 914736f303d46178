import pytest

from convrec.pipeline.comparisons import run_params, variant
from convrec.pipeline.memory import with_settings
from convrec.project.config.params import load_params
from convrec.project.errors import InputError


def test_a_name_stands_for_parameters_as_published():
    _, params = run_params(load_params(), "rank_grpo:exp:2", 2, 7)
    assert (params.rank_grpo.returns, params.rank_grpo.return_gamma, params.rank_grpo.max_steps) == ("exp:2", 2.0, 7)
    assert params.common.seed == load_params().common.seed + 1 and params.rank_grpo.epsilon is None
    assert variant("grpo")["algorithm"] == "grpo"
    public = run_params(load_params(), "rank_grpo_public:log", 1, 7)[0].rank_grpo
    assert (public.algorithm, public.returns, public.return_gamma) == ("rank_grpo_public", "log", None)


def test_one_process_trains_on_the_effective_batch_of_several():
    """Here a group of 8 is whole only across the 4 processes."""
    launched = {"launch": "configs/accelerate/ddp.yaml", "num_processes": 4}
    launched |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}
    params = with_settings(load_params(), {f"rank_grpo.{name}": value for name, value in launched.items()})
    section = run_params(params, "grpo", 1, 7)[0].rank_grpo
    assert (section.launch, section.num_processes) == (None, 1)
    assert (section.per_device_train_batch_size, section.gradient_accumulation_steps) == (2, 12)


def test_preferences_are_learnt_under_the_constraint_alone():
    free, constrained = (
        with_settings(load_params(), {"rank_grpo.constrained": value, "common.item_tokens": value})
        for value in (False, True)
    )
    with pytest.raises(InputError, match="--algorithms dpo: .*constrained = false: algorithm 'dpo' .* set it to true"):
        run_params(free, "dpo", 1, 2)
    assert run_params(constrained, "dpo", 1, 2)[0].rank_grpo.algorithm == "dpo"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, ": .*; only rank_grpo has returns") for name in ("grpo:log", "dpo:0.1", "rank_grpo:exp:two")),
        *((f"rank_grpo:exp:{end}", ": .*; only rank_grpo has returns") for end in ("1.2.3", ".", "2:3")),
        *((name, f" {name}") for name in ("ppo", "rank_grpo:linear", "rank_grpo:exp")),
    ],
)
def test_a_name_of_another_form_or_of_nothing_is_refused_before_any_training(name, message):
    with pytest.raises(InputError, match=f"--algorithms{message}"):
        run_params(load_params(), name, 1, 2)
