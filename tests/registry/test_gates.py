"""Policies and gates: what they let through, by hand-made figures."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from convrec.evaluation.comparison import Gain
from convrec.project.errors import InputError
from convrec.project.yaml import read_yaml
from convrec.registry.decisions import (
    AWAITING,
    LATENCY,
    PROMOTED,
    REFUSED,
    Comparison,
    Decision,
    Side,
    SliceChange,
    decision_markdown,
)
from convrec.registry.measure import slice_changes
from convrec.registry.policy import decide, parse_policy, rows_to_decide
from tests.small_project import ROOT

RAW = read_yaml(ROOT / "promotion.yaml")
POLICY = parse_policy(RAW, "promotion.yaml", [5, 20])
GAIN, CHANCE = "NDCG gain over the champion, at least", "chance of such a gain in NDCG between equals (p)"
MEANS = {"in_catalog": 1.0, "format": 1.0, "coverage": 0.5, LATENCY: 0.2}
CHAMPION = Side("3", MEANS)
COMPARISON = Comparison(
    Side("4", MEANS),
    CHAMPION,
    {"ndcg": Gain(0.02, 0.01, 0.03, 90, 0.001)},
    [SliceChange("mentions", "0", 40, 0.30, 0.31), SliceChange("mentions", "1", 29, 0.10, 0.31)],
    90,
    60,
    {"test": "t", "catalog": "c"},
    {"lists": "constrained"},
    {"popularity": Gain(0.05, 0.01, 0.09, 90, 0.02)},
)


def _with(**means: float) -> Comparison:
    return replace(COMPARISON, challenger=Side("4", {**MEANS, **means}))


def _policy(**changes):
    return parse_policy({**RAW, **changes}, "promotion.yaml", [5, 20])


def failing(decision: Decision) -> list[str]:
    """Return the names of the gates that do not hold."""
    return [gate.name for gate in decision.gates if not gate.passed]


def test_a_better_challenger_is_promoted():
    decision = decide(POLICY, COMPARISON)
    assert (decision.status, decision.challenger, decision.champion) == (PROMOTED, "4", "3")
    better = "better than the champion (version 3) and the best classical method (popularity)"
    assert decision.reason == f"On 90 test rows, version 4 is {better}. It was promoted."
    assert len(decision.gates) == 9 and failing(decision) == []


@pytest.mark.parametrize(
    ("gain", "failed", "why"),
    [
        (Gain(-0.02, -0.03, -0.01, 90, 0.001), [GAIN], "it is worse than the champion. Keep the champion."),
        (Gain(0.01, -0.01, 0.03, 90, 0.3), [GAIN, CHANCE], "nothing shows that it is better than the champion. Keep"),
        (Gain(0.01, 0.0, 0.03, 90, 0.05), [GAIN], "nothing shows that it is better than the champion. Keep"),
        (Gain(0.01, 0.001, 0.03, 90, 0.0501), [CHANCE], f"the {CHANCE} is 0.0501 (at most 0.05). Keep the champion."),
    ],
)
def test_worse_and_insignificant_challengers_are_refused(gain, failed, why):
    decision = decide(POLICY, replace(COMPARISON, gains={"ndcg": gain}))
    assert decision.status == REFUSED and failing(decision) == failed
    assert f"It was not promoted, because {why}" in decision.reason


@pytest.mark.parametrize(
    ("means", "failed"),
    [
        ({"in_catalog": 0.989}, "in_catalog"),
        ({"format": 0.949}, "format"),
        ({"coverage": 0.249}, "coverage relative to the champion's"),
        ({LATENCY: 0.401}, f"{LATENCY} relative to the champion's"),
    ],
)
def test_a_broken_guard_rail_outweighs_a_gain(means, failed):
    decision = decide(POLICY, _with(**means))
    assert decision.status == REFUSED and failing(decision) == [failed]
    limits = {"in_catalog": 0.99, "format": 0.95, "coverage": 0.25, LATENCY: 0.4}
    at_limit = decide(POLICY, _with(**{name: limits[name] for name in means}))
    assert at_limit.status == PROMOTED, "a limit itself holds"
    slow = Side("3", {**MEANS, LATENCY: 4.0})
    late = decide(POLICY, replace(_with(**{LATENCY: 5.5}), champion=slow))
    assert failing(late) == [LATENCY] and "because the time for an answer in seconds is 5.5 (at most 5)" in late.reason


def test_a_slice_that_falls_is_refused_if_it_has_the_rows():
    fallen = [SliceChange("mentions", "0", 40, 0.25, 0.31), SliceChange("month", "2022-12", 90, 0.4, 0.3)]
    decision = decide(POLICY, replace(COMPARISON, slices=fallen))
    assert failing(decision) == ["largest NDCG loss of a slice"]
    assert "because NDCG falls by 0.060 in the slice mentions = 0. Keep the champion." in decision.reason
    (gate,) = [gate for gate in decision.gates if not gate.passed]
    assert gate.figure == pytest.approx(0.06) and gate.detail == "mentions = 0, 40 rows: 0.3100 to 0.2500"
    few = replace(COMPARISON, slices=[replace(fallen[0], n_rows=29)])
    assert decide(POLICY, few).gates[-1].detail == "no slice has 30 rows"


def test_a_refusal_for_want_of_rows_says_how_many_would_decide():
    few = Gain(0.02, -0.02, 0.06, 35, 0.3)  # (0.04 / 0.02)² times as many rows
    decision = decide(POLICY, replace(COMPARISON, gains={"ndcg": few}))
    assert decision.reason.endswith("Keep the champion, or collect more: about 140 test rows would decide.")
    assert "about 140 test rows would decide; +0.0200" in decision_markdown(decision)
    fewer = {"fusion": Gain(0.01, -0.08, 0.1, 35, 0.8)}
    both = decide(POLICY, replace(COMPARISON, gains={"ndcg": few}, baselines=fewer))
    assert "nothing shows that it is better than the champion or fusion. Keep the champion, or" in both.reason
    assert both.reason.endswith(": about 2,900 test rows would decide."), "the most"
    assert rows_to_decide(few, -0.01) == 63, "35 (0.04 / 0.03)², in two digits"
    assert rows_to_decide(few, 0.05) == 63, "as far below the limit"
    assert rows_to_decide(few, -0.03) is None and rows_to_decide(few, 0.02) is None
    assert rows_to_decide(few, 0.0195) is None, "224,000 rows are more than a hundred times as many"
    worse = decide(POLICY, replace(COMPARISON, gains={"ndcg": Gain(-0.02, -0.03, -0.01, 35, 0.001)}))
    assert "collect more" not in worse.reason, "more rows would not help"


def test_the_first_version_needs_no_gain_but_the_guard_rails():
    alone = replace(COMPARISON, champion=None, gains={}, slices=[replace(COMPARISON.slices[0], champion=None)])
    decision = decide(POLICY, alone)
    assert decision.status == PROMOTED and decision.reason.endswith("It was promoted: there was no champion.")
    assert sum(gate.detail == "no champion" for gate in decision.gates) == 5
    text = decision_markdown(decision)
    assert "| no champion |" not in text and text.count("| holds |") == 4
    assert f"Not checked, because there is no champion to compare with: {GAIN}; {CHANCE}; " in text
    assert "Not checked" not in decision_markdown(decide(POLICY, COMPARISON))
    broken = decide(POLICY, replace(alone, challenger=Side("4", {**MEANS, "in_catalog": 0.5})))
    assert failing(broken) == ["in_catalog"]
    fusion = {**COMPARISON.baselines, "fusion": Gain(-0.002, -0.03, 0.026, 90, 0.9)}
    draw = decide(POLICY, replace(alone, baselines=fusion), model="models:/film/4", training="SFT is as good.")
    assert draw.reason == (
        "On 90 test rows, version 4 is not clearly different from the best classical method (fusion), better than "
        "popularity. It was not promoted, because nothing shows that it is better than fusion. You can serve it "
        "(`--model models:/film/4`). SFT is as good."
    )
    lost = decide(POLICY, replace(alone, baselines={**fusion, "fusion": Gain(-0.02, -0.03, -0.01, 90, 0.01)}))
    assert "better than popularity, worse than the best classical method (fusion). It was not" in lost.reason


@pytest.mark.parametrize("champion", [CHAMPION, None])
@pytest.mark.parametrize(
    ("low", "rule", "holds"),
    [(0.0, {}, True), (-0.001, {}, False), (-0.001, {"min": -0.01}, True), (-0.1, {"names": []}, True)],
)
def test_every_version_is_no_worse_than_the_baseline(champion, low, rule, holds):
    gains = COMPARISON.gains if champion else {}
    found = replace(
        COMPARISON, champion=champion, gains=gains, baselines={"popularity": Gain(0.02, low, 0.04, 90, 0.1)}
    )
    decision = decide(_policy(baselines={**RAW["baselines"], **rule}), found)
    assert decision.status == (PROMOTED if holds else REFUSED)
    assert failing(decision) == ([] if holds else ["NDCG gain over popularity, at least"])


def test_the_best_of_the_baselines_is_the_one_to_reach():
    found = {"popularity": Gain(0.1, 0.05, 0.15, 90, 0.01), "neighbours": Gain(-0.01, -0.03, 0.01, 90, 0.4)}
    policy = _policy(baselines={"names": ["popularity", "neighbours"], "metric": "ndcg", "min": 0.0})
    decision = decide(policy, replace(COMPARISON, baselines=found))
    (gate,) = [gate for gate in decision.gates if not gate.passed]
    assert gate.detail == "-0.0100 [-0.0300, +0.0100] over 90 rows" and gate.limit == "at least 0"
    assert gate.name == "NDCG gain over neighbours, at least"


EXPERIMENT = {"experiment": "ab-4-1", "verdict": "better", "champion": "3", "answers": 900, "users": 150}
EXPERIMENT |= {"problems": [], "mean": 0.25, "low": 0.01, "high": 0.49, "p": 0.03}


@pytest.mark.parametrize(
    ("found", "detail"),
    [
        (EXPERIMENT, ""),
        ({**EXPERIMENT, "verdict": "worse"}, "ab-4-1: worse [+0.010, +0.490], 900 answers of 150 users"),
        ({**EXPERIMENT, "verdict": "not decided", "low": None}, "ab-4-1: not decided, 900 answers of 150 users"),
        (None, "no experiment against version 3 has ended; `convrec experiment start`"),
    ],
)
def test_an_online_experiment_is_a_gate_if_the_policy_names_it(found, detail):
    compared = replace(COMPARISON, experiment=found)
    decision = decide(_policy(experiment={}), compared)
    assert len(decision.gates) == 10 and failing(decision) == (["online experiment"] if detail else [])
    assert [gate.detail for gate in decision.gates if not gate.passed] == ([detail] if detail else [])
    alone = decide(_policy(experiment={}), replace(COMPARISON, champion=None, gains={}))
    assert [gate.detail for gate in alone.gates if gate.name == "online experiment"] == ["no champion"]


def test_an_online_experiment_can_decide_in_place_of_the_test_rows():
    lost = Gain(-0.02, -0.03, -0.01, 90, 0.001)
    compared = replace(
        COMPARISON,
        gains={"ndcg": lost},
        slices=[SliceChange("mentions", "0", 40, 0.20, 0.31)],
        experiment=EXPERIMENT,
    )
    assert len(failing(decide(_policy(experiment={}), compared))) == 2, "beside the others by default"
    assert len(failing(decide(_policy(experiment={"replaces": ["gains"]}), compared))) == 1
    both = _policy(experiment={"replaces": ["gains", "slices"]})
    decision = decide(both, compared)
    assert decision.promoted and "promoted: users preferred it in the online experiment ab-4-1." in decision.reason
    assert failing(decide(both, replace(compared, baselines={"popularity": lost}))) != [], "baselines stay"
    assert failing(decide(both, replace(compared, experiment=None))) == ["online experiment"]


def test_a_rollback_and_a_missing_approval_hold_a_version_back():
    decision = decide(POLICY, COMPARISON, rolled_back="rolled back by ops: slow")
    assert failing(decision) == ["earlier rollback"] and "rolled back by ops: slow; --again" in decision.reason
    assert decide(POLICY, COMPARISON, rolled_back="rolled back", again=True).status == PROMOTED
    policy, approval = _policy(approval="required"), {"by": "ops", "at": "today"}
    awaited = decide(policy, COMPARISON)
    assert awaited.status == AWAITING and "`convrec promote --version 4 --approve --by NAME`" in awaited.reason
    given = decide(policy, COMPARISON, approval=approval)
    assert given.status == PROMOTED and given.gates[-1].detail == "given by ops"
    assert failing(decide(policy, _with(format=0.0), approval=approval)) == ["format"], "a gate outweighs a person"


def test_a_decision_survives_json_and_is_a_markdown_table():
    decision = replace(decide(POLICY, _with(format=0.5)), number=2, by="ops", at="2026-11-22T13:00:00+00:00")
    value = json.loads(json.dumps(decision.to_json()))
    assert value["comparison"]["gains"]["ndcg"] == {"mean": 0.02, "low": 0.01, "high": 0.03, "n": 90, "p": 0.001}
    assert list(value["gates"][0]) == ["name", "figure", "limit", "passed", "detail", "note", "why"]
    text = decision_markdown(decision)
    assert text.startswith("## Version 4: refused\n\nOn 90 test rows, version 4 is better than the champion (ver")
    assert "because the share of lists in the exact format is 0.5 (at least 0.95). Keep" in value["reason"]
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(decision.gates) and all(line.count("|") == 6 for line in table)
    assert "| share of lists in the exact format | 0.5000 | at least 0.95 | FAILS |  |" in table
    forged = decision_markdown(replace(decision, by="ops\n- approved by all <img src=x>", reason="a\n# b"))
    assert "\n- approved" not in forged and "\n#" not in forged and "<img" not in forged


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gain": {}}, "gain: unknown field"),
        ({"gains": {}}, "gains = {}: "),
        ({"gains": {"ndcg": {"min": 0.0}}}, "gains.ndcg.max_p: missing"),
        ({"gains": {"ndcg_at_10": {"min": 0, "max_p": 0.05}}}, "gains = 'ndcg_at_10': not a known metric"),
        ({"gains": {"novelty": {"min": 0, "max_p": 0.05}}}, "gains = 'novelty': not a known metric"),
        ({"guard_rails": {"slices": {"metric": "map", "max_drop": 0.1, "min_rows": 3}}}, "slices.metric = 'map'"),
        ({"guard_rails": {"coverage": {}}}, "guard_rails.coverage: no limit; give min"),
        ({"guard_rails": {"latency_p95_seconds": {}}}, "latency_p95_seconds: no limit"),
        ({"baselines": {"names": ["random"]}}, "baselines.names.0 = 'random': "),
        ({"baselines": {"metric": "map"}}, "baselines.metric = 'map'"),
        ({"experiment": {"replaces": ["baselines"]}}, "experiment.replaces.0 = 'baselines': "),
        ({"approval": True}, "approval = True: "),
    ],
)
def test_mistakes_in_a_policy_name_field_and_remedy(change, message):
    with pytest.raises(InputError) as error:
        _policy(**change)
    assert str(error.value).startswith("promotion.yaml: ") and message in str(error.value)


def test_too_few_persons_pass_no_gate():
    """One person's rows gave an interval without width, whose lower end was above any limit."""
    gain = Gain(0.3, None, None, 90, 0.04)
    decision = decide(POLICY, replace(COMPARISON, gains={"ndcg": gain}, baselines={"neighbours": gain}))
    failed = [gate for gate in decision.gates if not gate.passed]
    assert GAIN in [gate.name for gate in failed]
    assert all(gate.detail == "there are too few persons in the 90 test rows" for gate in failed)
    assert decision.reason.startswith("Version 4 was not promoted, because there are too few persons in the 90 test r")
    within = _policy(gains={"ndcg": {"min": -0.1, "max_p": 1.0}})
    kept = decide(within, replace(COMPARISON, gains={"ndcg": Gain(0.0, -0.05, 0.05, 90, 1.0)}))
    assert "not clearly different from the champion (version 3), better" in kept.reason
    assert "within the loss that" in kept.reason


def test_a_slice_of_few_persons_is_left_out():
    slices, persons = pd.DataFrame({"mentions": ["0"] * 60 + ["1"] * 60}), pd.Series([*range(60), *([7] * 60)])
    scores = [pd.Series(np.linspace(0, 1, 120)), pd.Series(np.ones(120))]
    assert [change.name for change in slice_changes(slices, scores, persons)] == ["0"]
