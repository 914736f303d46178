"""The summary of a pipeline run."""

from dataclasses import replace

from convrec.evaluation.comparison import Gain
from convrec.registry.decisions import ALREADY, LATENCY, Decision, Gate, Side
from flows.pipeline import changes_line
from flows.summary import summarize
from tests.evaluation.report_files import HOSTILE
from tests.registry.test_gates import COMPARISON

COMPARED = replace(
    COMPARISON,
    challenger=Side("4", {LATENCY: 0.25}),
    gains={"ndcg": Gain(0.0123, 0.0023, 0.0223, 1741, 0.001)},
    settings={"metrics": {"ndcg": "ndcg_at_20"}},
)
GATES = (Gate("NDCG gain over the champion, at least", 0.0023, "above 0", True, HOSTILE),)
DECISION = Decision("promoted", "It is better.", "4", "3", GATES, COMPARED)


def test_the_summary_has_the_decision_and_the_time_of_each_stage():
    text = summarize({"sft": 90.0}, ["data", "sft"], DECISION, ["Half of it is listed.", "Better."], "RESULTS")
    assert (
        text.startswith("- **Promoted.** It is better.\n") and "- Half of it is listed.\n- Better.\n- Finished" in text
    )
    assert "- NDCG@20 over the champion, version 3: **+0.012 ± 0.010** (on the same 1,741 test rows)" in text
    assert "- Latency: **0.25 s**" in text
    assert "| data | up to date |\n| sft | 1m 30s |" in text
    assert text.index("Promoted") < text.index("RESULTS") < text.index("Gates of the promotion")


def test_the_first_champion_and_a_version_that_is_champion_already():
    first = summarize({}, ["data"], Decision("promoted", "The first.", "4", None, GATES))
    assert first.startswith("- **Promoted.** The first.\n- Champion before this run: **none**\n- Finished")
    already = summarize({}, ["data"], Decision(ALREADY, "", "4", "4"))
    assert already.splitlines()[1].startswith("- Finished")


def test_one_line_tells_of_tracked_files_that_a_run_has_changed():
    (line,) = changes_line(["dvc.lock", "metrics/evaluate.json", "metrics/sft.json", "plots/sft.csv"])
    assert line.startswith("Files that git tracks now hold this run's results: ")
    assert line.endswith("(git restore dvc.lock metrics plots)") and changes_line([]) == []
