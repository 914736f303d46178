from convrec.project.config.params import parse_params
from convrec.project.results import read_json
from convrec.project.yaml import read_yaml
from convrec.registry.model_card import MAX_DESCRIPTION, Facts, render_card, with_decision
from tests.small_project import ROOT


def test_the_card_of_the_whole_evaluation_fits_the_registry():
    params = parse_params(read_yaml(ROOT / "params.yaml"), "params.yaml")
    data = {name: {"md5": "0" * 32, "rows": 18097, "dates": "2022-01-01 to 2022-12-31"} for name in ("train", "test")}
    parent = {"name": "sft", "md5": "0" * 32, "run_id": "0" * 32}
    versions = {"data_version": "0" * 8, "catalog_version": "0" * 8}
    evaluation = read_json(ROOT / "tests" / "registry" / "evaluation.json")  # of a demo
    facts = Facts("rank_grpo", "0" * 32, params, evaluation, data, "0" * 32, versions, parent, {})
    card = render_card(facts)
    assert len(card) < MAX_DESCRIPTION - 1000, "with room for decisions"
    assert all(len(value) < 100 for value in facts.tags().values())
    for number in range(40):
        card = with_decision(card, f"decision {number} {'x' * 100}")
    assert len(card) <= MAX_DESCRIPTION and "decision 39" in card and "decision 0 " not in card
    head, rest = render_card(facts).split("## Decisions\n")
    assert card.startswith(head) and card.endswith(rest), "only decisions were dropped"
    assert head.count("\n## ") == 0 and card.index("decision 39") < card.index("decision 38"), "newest first"
