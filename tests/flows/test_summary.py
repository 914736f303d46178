"""The summary of a pipeline run."""

from contextlib import closing

from convrec.demonstrations.calls import CallStore, ChatAnswer
from flows.summary import run_summary, teacher_cost


def test_the_cost_of_the_teacher_is_part_of_the_summary(tmp_path):
    path = tmp_path / "calls.db"
    assert teacher_cost(path) == "" and not path.exists()
    with closing(CallStore(path)) as store:
        assert teacher_cost(path) == ""
        for prompt in ("Heat?", "Alien?"):
            request = {"model": "teacher", "messages": [{"role": "user", "content": prompt}]}
            store.put(prompt, request, ChatAnswer("1. Up", "stop", 900, 300, 0.25))
    cost = teacher_cost(path)
    assert "2 calls, 2,400 tokens, cost 0.50" in cost
    summary = run_summary({"sft": 90.0}, ["data", "sft"], "", "", cost).splitlines()
    assert cost in summary and "| data | up to date |" in summary
    assert any(line.startswith("Machine: ") for line in summary)
