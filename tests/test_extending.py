"""One of each that docs/tour.md tells how to add: one file written or edited, one line added, and it is used."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SOURCE = """

from convrec.data.catalog import Catalog, Item
from convrec.data.schemas import spooled
from convrec.data.sources.source import Source
from tests.rows import make_row


def read_diary(folder, quarantine):
    days = {"2022-10-01": "a film about balloons", "2022-11-02": "robots", "2022-12-03": "something old"}
    rows = [make_row(day, [("Up", 2009)], text, date=day) for day, text in days.items()]
    return Source(Catalog([Item("Up", 2009)]), spooled(rows))
"""
TEACHER = """
from convrec.demonstrations.teachers import Teacher


class Parrot(Teacher):
    def recommend(self, rows, list_length):
        return ["Up (2009)" for _ in rows]

    def judge(self, rows, candidates):
        return candidates * 0.0


def make(setting):
    return Parrot()
"""
REWARD = """
class LastReward(RankReward):
    __name__ = "last"

    def _judge(self, completions, groundtruth, seen_titles):
        rows = torch.zeros(len(completions), self.num_ranks)
        rows[:, -1] = 1
        return rows, {}


"""
BASELINE = """    def newest(self) -> Scorer:
        return self._of_all(np.array([item.year for item in self.catalog.items]))

"""
METRIC = """def precision(relevance: np.ndarray, num_truths: np.ndarray, cutoff: int) -> np.ndarray:
    return relevance[:, :cutoff].mean(axis=1)


"""
GATE = """class Longest(Rule):
    max: float

    def gates(self, name, found):
        return [_gate(name, found.challenger.means[name], "at most", self.max)]


"""
# The edits of each: a file, and what is replaced by what; without an old text, the file is new.
EDITS = {
    "data source": [
        ("data/sources/diary.py", "", SOURCE),
        ("project/config/data.py", '"feedback"]', '"feedback", "diary"]'),
    ],
    "teacher": [
        ("demonstrations/teachers/parrot.py", "", TEACHER),
        ("project/config/demonstrations.py", '"simulated", "similarity"', '"parrot", "simulated", "similarity"'),
    ],
    "reward": [
        ("training/rl/rewards.py", "# The other rewards of ranks", f"{REWARD}# The other rewards of ranks"),
        ("training/rl/rewards.py", "RankReward]] = {", 'RankReward]] = {"last": LastReward'),
        ("project/config/rank_grpo.py", "    model: str | None", "    last: float = 0.0\n    model: str | None"),
    ],
    "baseline": [
        ("evaluation/baselines.py", "    def _of_all(", f"{BASELINE}    def _of_all("),
        ("evaluation/systems.py", "BASELINES = {", 'BASELINES = {"newest": "newest",'),
    ],
    "metric": [
        ("evaluation/metrics.py", "class Metric(", f"{METRIC}class Metric("),
        ("evaluation/metrics.py", "METRICS = {", 'METRICS = {"precision": Metric("Precision@", precision),'),
    ],
    "gate": [
        ("registry/policy.py", "class GuardRails(", f"{GATE}class GuardRails("),
        ("registry/policy.py", "    slices: Slices", "    length: Longest | None = None\n    slices: Slices"),
    ],
}
USE = """
import json
from pathlib import Path
from convrec.classical.embedding import TfidfEmbedder
from convrec.data.catalog import Catalog, Item
from convrec.data.quarantine import Quarantine
from convrec.demonstrations.teachers import make_teacher
from convrec.evaluation.baselines import Options, baseline_lists
from convrec.evaluation.scoring import score_lists
from convrec.evaluation.systems import BASELINES, SYSTEMS
from convrec.pipeline.stages import data, rank_grpo
from convrec.project.config.params import Params, load_params
from convrec.registry.policy import parse_policy, resolve_metric
from convrec.project.yaml import read_yaml
from tests.registry.test_gates import _with
from tests.rows import make_row

raw, found = load_params().model_dump(), {}
raw["data"]["source"] = "diary"
raw["common"] |= {"list_length": 1, "cutoffs": [1]}
raw["demonstrations"]["teacher"]["kind"] = "parrot"
raw["rank_grpo"]["rewards"]["last"] = 0.5
params = Params.model_validate(raw)

_, splits, _ = data.prepare(params, Quarantine())
found["data source"] = {name: rows["prompt_id"].tolist() for name, rows in splits.items()}

rows = [make_row("p", [("Up", 2009)], date="2022-01-01")]
found["teacher"] = make_teacher(params.demonstrations.teacher.kind, None).recommend(rows, 1)

catalog = Catalog([Item("Heat", 1995), Item("Up", 2009)])
rewards, weights = rank_grpo._rewards(params.rank_grpo.rewards, catalog, 3)
rewards[-1](["Up (2009)"], [[]], [[]])
found["reward"] = [rewards[-1].last_relevance.tolist(), weights]

options = Options(2, 1, TfidfEmbedder, 1)
answers = dict(baseline_lists(BASELINES, rows, rows, rows, catalog, options, (None, None)))
found["baseline"] = [answers["newest"].lists, SYSTEMS["newest"]]

scores = score_lists({"p": "Heat (1995)\\nUp (2009)"}, rows, catalog, 2, [2])
found["metric"] = [scores["precision_at_2"].tolist(), resolve_metric("precision", [2, 5], "metric")]

policy = read_yaml(Path("promotion.yaml"))
policy["guard_rails"]["length"] = {"max": 20}
gates = parse_policy(policy, "promotion.yaml", [5]).gates(_with(length=21.0))
found["gate"] = [gate.passed for gate in gates if gate.name == "length"]
print(json.dumps(found))
"""
USED = {
    "data source": {"train": ["2022-10-01"], "validation": ["2022-11-02"], "test": ["2022-12-03"]},
    "teacher": ["Up (2009)"],
    "reward": [[[0, 0, 1]], [1, 0.5]],
    "baseline": [["Up (2009)\nHeat (1995)"], "newest"],
    "metric": [[0.5], "precision_at_5"],
    "gate": [False],
}


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """What one process finds of all that is added to a copy of the package."""
    copy = tmp_path_factory.mktemp("extended")
    package = copy / "convrec"
    shutil.copytree(ROOT / "src" / "convrec", package)
    for file, old, new in [edit for edits in EDITS.values() for edit in edits]:
        path = package / file
        text = path.read_text(encoding="utf-8") if old else ""
        assert not old or text.count(old) == 1, f"{file}: {old}"
        path.write_text(text.replace(old, new) if old else new, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", USE],
        cwd=ROOT,
        env={"PYTHONPATH": f"{copy}:{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", EDITS)
def test_what_is_added_is_used(used, kind):
    assert used[kind] == USED[kind]


@pytest.mark.parametrize("kind", EDITS)
def test_the_tour_says_where_to_add_it(kind):
    tour = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    (row,) = [line for line in tour.splitlines() if line.startswith(f"| a {kind} |")]
    for file, old, _ in EDITS[kind]:
        assert (file if old else f"{Path(file).parent}/NAME.py") in row
