"""The main results of an evaluation: the facts on the report's card, and sentences about them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from convrec.evaluation.metrics import metric_label
from convrec.evaluation.systems import BASELINES, CONSTRAINED, UNGUIDED, system_names

TOO_FEW = "too few persons"  # for an interval
_VERBS = {1: "beats", -1: "loses to", 0: "is not clearly different from"}


class Fact(NamedTuple):
    """One cell of the card."""

    label: str
    value: str
    note: str = ""


def p_words(p: float) -> str:
    """Return a p-value as text."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def bounds(interval: Mapping[str, Any], form: str = ".4f") -> str:
    """Return the ends of a 95 % interval as text, in brackets."""
    if interval["low"] is None:
        return f"({TOO_FEW})"
    return f"[{interval['low']:{form}}, {interval['high']:{form}}]"


def excludes_zero(gain: Mapping[str, Any] | None) -> int:
    """Return 1 if a difference's 95 % interval is above 0, -1 if it is below, else 0; also without an interval."""
    if not gain or gain["low"] is None:
        return 0
    return int(gain["low"] > 0) - int(gain["high"] < 0)


def spread(interval: Mapping[str, Any], scale: float = 1, digits: int = 3) -> str:
    """Return half the width of a 95 % interval as text, after ±; `scale` is 100 for percentages."""
    if interval["low"] is None:
        return f"({TOO_FEW})"
    half = scale * (interval["high"] - interval["low"]) / 2
    return f"± {half:.1f}" if scale == 100 else f"± {half:.{digits}f}"


def with_interval(interval: Mapping[str, Any]) -> str:
    """Return a mean and its 95 % interval as text, with four digits."""
    return f"{interval['mean']:.4f} {bounds(interval)}"


def gain_words(gain: Mapping[str, Any]) -> str:
    """Return a paired difference with its interval and p-value as text."""
    return f"{gain['mean']:+.3f} {spread(gain)}, {p_words(gain['p'])}"


def served(evaluation: Mapping[str, Any], stage: str) -> str:
    """Return the key of a stage's constrained system, which is how models are served, or of its free one without it."""
    return stage + CONSTRAINED if stage + CONSTRAINED in evaluation else stage


def ranking(evaluation: Mapping[str, Any], headline: str) -> list[str]:
    """Return the keys of the baselines and of the served Rank-GRPO model, highest score first."""
    keys = [key for key in (*BASELINES, served(evaluation, "rank_grpo")) if key in evaluation]
    return sorted(keys, key=lambda key: -evaluation[key][headline])


def headline_metrics(evaluation: Mapping[str, Any], headline: str) -> dict[str, Any]:
    """Return the numbers to compare runs by: each system's headline metric, the served model's recall and gains."""
    ours, base, recall = served(evaluation, "rank_grpo"), served(evaluation, "sft"), headline.replace("ndcg", "recall")
    gains = evaluation[f"paired_{headline}"]
    others = {name: gains.get(f"{ours}_over_{name}") for name in (base, evaluation["best_baseline"])}
    return {
        "n_rows": evaluation["n_rows"],
        "best_baseline": evaluation["best_baseline"],
        headline: {system: evaluation[system][headline] for system in system_names(evaluation)},
        recall: {ours: evaluation[ours][recall]},
        "gain": {f"over_{name}": gain["mean"] for name, gain in others.items() if gain},
    }


def _in_a_sentence(name: str) -> str:
    """Return a system's name for use in a sentence: "SFT, constrained" becomes "constrained SFT"."""
    free, comma, _ = name.partition(", ")
    return f"constrained {free}" if comma else free


def headline_facts(evaluation: Mapping[str, Any], systems: Mapping[str, str], headline: str) -> list[Fact]:
    """Return the facts of the card: gain over SFT, rank among the baselines, format, in-catalog share, coverage."""
    ours, base = served(evaluation, "rank_grpo"), served(evaluation, "sft")
    gains, scores, facts = evaluation.get(f"paired_{headline}", {}), evaluation[ours], []
    if gain := gains.get(f"{ours}_over_{base}"):
        label = f"{metric_label(headline)} gain over {_in_a_sentence(systems[base])}"
        note = f"{p_words(gain['p'])}; {scores[headline]:.3f} from {evaluation[base][headline]:.3f}"
        facts.append(Fact(label, f"{gain['mean']:+.3f} {spread(gain)}", note))
    order = ranking(evaluation, headline)
    if best := next((key for key in order if key != ours), None):
        note = f"strongest baseline: {systems[best]}, {evaluation[best][headline]:.3f}"
        facts.append(Fact("Place among the baselines", f"{order.index(ours) + 1} of {len(order)}", note))
    shares = {"format": "lists", "in_catalog": "lines", "coverage": "catalog that is listed"}
    return facts + [
        Fact(metric_label(name), f"{100 * scores[name]:.1f} %", f"share of the {what}")
        for name, what in shares.items()
        if name in scores
    ]


def findings(evaluation: Mapping[str, Any], systems: Mapping[str, str], headline: str) -> list[str]:
    """Return sentences about the gains over SFT and the strongest baseline, and the lists without the constraint."""
    ours, base = served(evaluation, "rank_grpo"), served(evaluation, "sft")
    metric, gains = metric_label(headline), evaluation.get(f"paired_{headline}", {})
    others = [key for key in ranking(evaluation, headline) if key != ours]
    sentences = []
    for other in dict.fromkeys([base, *others[:1]]):
        if gain := gains.get(f"{ours}_over_{other}"):
            verb = _VERBS[excludes_zero(gain)]
            what = f"the strongest baseline, {systems[other]}," if other in others else _in_a_sentence(systems[other])
            subject = _in_a_sentence(systems[ours])
            sentences.append(f"{subject[0].upper()}{subject[1:]} {verb} {what} in {metric}: {gain_words(gain)}.")
    ahead = [key for key in others if excludes_zero(gains.get(f"{ours}_over_{key}")) < 0]
    if len(ahead) > 1:
        names = ", ".join(systems[key] for key in ahead)
        sentences.append(f"{len(ahead)} baselines score clearly higher: {names}.")
    bound = "rank_grpo" + UNGUIDED if "rank_grpo" + UNGUIDED in evaluation else ours
    if (gain := gains.get(f"{ours}_over_{bound}")) and excludes_zero(gain) > 0:
        sentences.append(f"Without guidance, its lists are worse: {metric} falls by {gain['mean']:.3f}.")
    if (gain := gains.get(f"{bound}_over_rank_grpo")) and excludes_zero(gain) > 0:
        sentences.append(f"Without the constraint, its lists are worse: {metric} falls by {gain['mean']:.3f}.")
    return sentences
