"""Stage `rank_grpo`: which checkpoint becomes the model."""

import json
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from convrec.pipeline.stages import rank_grpo
from convrec.project.config.params import load_params
from convrec.project.paths import Paths
from tests.registry.registered import make_workspace
from tests.service.recommending import save_model


@pytest.mark.parametrize(("validation", "chosen"), [((0.3, 0.2, 0.25), 0), ((0.3, 0.3, 0.3), 0), ((0.3, 0.4, 0.35), 2)])
def test_a_training_that_never_beats_its_start_keeps_the_start(tmp_path, monkeypatch, caplog, validation, chosen):
    monkeypatch.chdir(make_workspace(tmp_path))
    paths, params = Paths(), load_params()
    start = save_model(paths.model("sft"))
    values = iter(validation)
    monkeypatch.setattr(rank_grpo, "make_measure", lambda *_: lambda _: {"ndcg_at_4": next(values)})
    for _ in range(2):  # the second run finds the finished training
        rank_grpo.run(params, paths, MagicMock())
        metrics = json.loads(paths.metrics("rank_grpo").read_text())
        assert metrics["chosen_step"] == chosen
        assert metrics["validation"]["ndcg_at_4"] == validation[chosen // 2]
        weights = [(folder / "model.safetensors").read_bytes() for folder in (start, paths.model("rank_grpo"))]
        assert (weights[0] == weights[1]) == (chosen == 0)
    assert next(values, None) is None
    assert ("than step 0" in caplog.text) == (chosen == 0)


@pytest.mark.parametrize(("prompts", "most", "steps"), [(395, 200, 49), (4000, 200, 200), (3, 200, 1), (395, -1, -1)])
def test_few_prompts_get_few_steps(prompts, most, steps):
    """Sixteen prompts a step, two passes over them."""
    arguments = SimpleNamespace(
        per_device_train_batch_size=16, gradient_accumulation_steps=2, world_size=2, max_steps=most
    )
    config = load_params().rank_grpo
    assert (config.group_size, config.num_train_epochs, config.num_iterations) == (4, 2.0, 1)
    rank_grpo._limit_steps(arguments, config, prompts)
    assert arguments.max_steps == steps
