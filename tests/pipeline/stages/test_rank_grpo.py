"""Stage `rank_grpo`: which checkpoint becomes the model."""

import json
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import pytest

from convrec.classical.crossfit import CrossFitted
from convrec.classical.embedding import TfidfEmbedder
from convrec.classical.evidence import Evidence
from convrec.classical.guidance import Guidance
from convrec.generation.pretrained import load_tokenizer
from convrec.pipeline.memory import with_settings
from convrec.pipeline.stages import rank_grpo
from convrec.project.config.params import load_params
from convrec.project.paths import Paths
from tests.generation.vocabularies import by_item
from tests.registry.registered import make_workspace
from tests.rows import make_row
from tests.service.recommending import save_model


@pytest.mark.parametrize(("validation", "chosen"), [((0.3, 0.2, 0.25), 0), ((0.3, 0.3, 0.3), 0), ((0.3, 0.4, 0.35), 2)])
def test_a_training_that_never_beats_its_start_keeps_the_start(tmp_path, monkeypatch, caplog, validation, chosen):
    monkeypatch.chdir(make_workspace(tmp_path))
    paths, params = Paths(), load_params()
    start = save_model(paths.model("sft"))
    values = iter(validation)
    monkeypatch.setattr(rank_grpo, "make_measure", lambda *_: lambda: {"ndcg_at_4": next(values)})
    load = Mock(side_effect=load_tokenizer)
    monkeypatch.setattr(rank_grpo, "load_tokenizer", load)
    written = []  # the files of the tokenizer
    for run in (1, 2):  # the second one finds the finished training
        rank_grpo.run(params, paths, MagicMock())
        written.append([file.read_bytes() for file in sorted(paths.model("rank_grpo").glob("token*"))])
        assert load.call_count == run and written[0] == written[-1]
        metrics = json.loads(paths.metrics("rank_grpo").read_text())
        assert metrics["chosen_step"] == chosen
        assert metrics["validation"]["ndcg_at_4"] == validation[chosen // 2]
        weights = [(folder / "model.safetensors").read_bytes() for folder in (start, paths.model("rank_grpo"))]
        assert (weights[0] == weights[1]) == (chosen == 0)
    assert next(values, None) is None
    assert ("than step 0" in caplog.text) == (chosen == 0)


def test_a_training_is_keyed_by_every_file_that_can_change_its_model(tmp_path, monkeypatch):
    monkeypatch.chdir(make_workspace(tmp_path))
    paths, reward = Paths(), tmp_path / "reward"
    save_model(paths.model("sft"))
    save_model(reward)
    params = with_settings(load_params(), {"rank_grpo.rewards.model": str(reward)})
    (paths.guidance / "guidance.json").parent.mkdir()
    keys = [rank_grpo.key_of(params, paths)]
    inputs = [paths.guidance / "guidance.json", paths.catalog, *map(paths.split, ("train", "validation"))]
    for file in (*inputs, paths.model("sft") / "config.json", reward / "config.json"):
        file.write_bytes((file.read_bytes() if file.exists() else b"") + b"\n")
        keys.append(rank_grpo.key_of(params, paths, str(paths.model("sft"))))  # without a look into the catalog
    assert len({key.task for key in keys}) == len(keys) and len({key.made_by for key in keys}) == 1


@pytest.mark.parametrize(("prompts", "most", "steps"), [(395, 200, 49), (4000, 200, 200), (3, 200, 1), (395, -1, -1)])
def test_few_prompts_get_few_steps(prompts, most, steps):
    """Sixteen prompts a step, two passes over them."""
    sizes = {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 2, "world_size": 2}
    arguments = SimpleNamespace(**sizes, max_steps=most)
    config = load_params().rank_grpo
    assert (config.num_generations, config.num_train_epochs) == (8, 2.0)
    rank_grpo._limit_steps(arguments, config, prompts)
    assert arguments.max_steps == steps


@pytest.mark.parametrize(("lists", "beta"), [(2, 0.1), (4, 1.0)])
def test_preferences_have_the_published_beta(tmp_path, lists, beta):
    settings = {"algorithm": "dpo", "num_generations": lists}
    params = with_settings(load_params(), {f"rank_grpo.{name}": value for name, value in settings.items()})
    arguments = rank_grpo._arguments(params, tmp_path, [1.0])
    assert (arguments.beta, arguments.num_generations) == (beta, lists)


def test_the_rows_of_a_batch_are_guided_as_among_all_others(catalog):
    """Without what their own people liked, and each found once a batch, which the sampler repeats."""
    rows = [
        make_row("a", [("Heat", 1995), ("Up", 2009)], "a heist and the police", user_id="ann"),
        make_row("b", [("Heat", 1995)], "police and a heist", user_id="bob", seen_titles=["Up"]),
        make_row("c", [("Dune", 2021)], "a desert planet", user_id="cid", seen_titles=["Up"]),
    ]
    weights = {"popularity": 0.5, "neighbours": 2.0, "item_knn": 1.0, "content": 0.3, "words": 0.7, "wishes": 1.0}
    evidence = Evidence.fit(rows, catalog, TfidfEmbedder, neighbours=3, kept=3)
    parts = CrossFitted.fit(rows, catalog, TfidfEmbedder, neighbours=3, kept=3)
    guidance, asked = Guidance(evidence, weights, {"name": "tfidf"}, parts=parts), []
    expected = [by_item(own) for own in guidance(rows, training=True)]

    def spy(own, **how):
        asked.append(own)
        return guidance(own, **how)

    examples = [{"row": place, "seen_titles": []} for place in (2, 2, 0)]
    guided_batch = rank_grpo._Guided(rows, spy)
    found = guided_batch(examples)
    assert guided_batch(examples) == found and asked == [[rows[2], rows[0]]] and any(expected)
    assert guided_batch(examples[2:])[0] == found[2] and asked[1:] == [[rows[0]]]
    for example, guided in zip(examples, found, strict=True):
        assert guided["seen_titles"] == [] and "log_weights" not in example
        own = dict(zip(guided["guided_items"], guided["log_weights"], strict=True))
        assert own == expected[example["row"]]
