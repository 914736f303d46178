from convrec.project.config.params import parse_params
from convrec.project.results import read_json
from convrec.project.yaml import read_yaml
from convrec.registry.model_card import MAX_DESCRIPTION, Facts, render_card
from tests.small_project import ROOT


def test_the_card_of_the_whole_evaluation_fits_the_registry():
    params = parse_params(read_yaml(ROOT / "params.yaml"), "params.yaml")
    data = {name: {"md5": "0" * 32, "rows": 18097, "dates": "2022-01-01 to 2022-12-31"} for name in ("train", "test")}
    versions = {"data_version": "0" * 8, "catalog_version": "0" * 8}
    evaluation = read_json(ROOT / "tests" / "registry" / "evaluation.json")  # of a demo
    facts = Facts("rank_grpo", "0" * 32, params, evaluation, data, "0" * 32, versions, "sft 00000000", {})
    card = render_card(facts)
    assert len(card) < MAX_DESCRIPTION and all(len(value) < 100 for value in facts.tags().values())
