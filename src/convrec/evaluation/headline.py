"""The main results of an evaluation: the facts on the report's card, and sentences about them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from convrec.evaluation.metrics import metric_label
from convrec.evaluation.systems import BASELINES, FREE, UNGUIDED, system_names

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


def ranking(evaluation: Mapping[str, Any], headline: str) -> list[str]:
    """Return the keys of the baselines and of Rank-GRPO, highest score first."""
    keys = [key for key in (*BASELINES, "rank_grpo") if key in evaluation]
    return sorted(keys, key=lambda key: -evaluation[key][headline])


def headline_metrics(evaluation: Mapping[str, Any], headline: str) -> dict[str, Any]:
    """Return the numbers to compare runs by: each system's headline metric, Rank-GRPO's recall and gains."""
    gains, recall = evaluation[f"paired_{headline}"], headline.replace("ndcg", "recall")
    others = {name: gains.get(f"rank_grpo_over_{name}") for name in ("sft", evaluation["best_baseline"])}
    return {
        "n_rows": evaluation["n_rows"],
        "best_baseline": evaluation["best_baseline"],
        headline: {system: evaluation[system][headline] for system in system_names(evaluation)},
        recall: {"rank_grpo": evaluation["rank_grpo"][recall]},
        "gain": {f"over_{name}": gain["mean"] for name, gain in others.items() if gain},
    }


def _found(evaluation: Mapping[str, Any], system: str, headline: str) -> str:
    return f"{evaluation[system][headline.replace('ndcg', 'recall')]:.0%}".replace("%", "\u00a0%")


def headline_facts(evaluation: Mapping[str, Any], systems: Mapping[str, str], headline: str) -> list[Fact]:
    """Return the facts of the card: recall, rank among the baselines, format, coverage; `findings` has the gains."""
    scores = evaluation["rank_grpo"]
    order, ranks = ranking(evaluation, headline), headline.rpartition("_")[2]
    best, note = next((key for key in order if key != "rank_grpo"), None), ""
    if best:
        note = f"best classical method, {systems[best]}: {_found(evaluation, best, headline)}"
    facts = [Fact(f"Ground truth in the first {ranks}", _found(evaluation, "rank_grpo", headline), note)]
    if best:
        place = f"{order.index('rank_grpo') + 1} of {len(order)}"
        facts.append(Fact("Place among the baselines", place, f"by {metric_label(headline)}"))
    shares = {"format": "lists", "coverage": "catalog that is listed"}
    return facts + [
        Fact(metric_label(name), f"{100 * scores[name]:.1f} %", f"share of the {what}")
        for name, what in shares.items()
        if name in scores
    ]


def findings(evaluation: Mapping[str, Any], systems: Mapping[str, str], headline: str) -> list[str]:
    """Return sentences: the verdict, the gains over the strongest baseline and SFT, and what the ablations lose.

    The verdict is the share of the ground truth that is listed, and the best baseline's share.
    """
    metric, gains = metric_label(headline), evaluation.get(f"paired_{headline}", {})
    others = [key for key in ranking(evaluation, headline) if key != "rank_grpo"]
    share, ranks = _found(evaluation, "rank_grpo", headline), headline.rpartition("_")[2]
    best = [f"; the best classical method, {systems[key]}, has {_found(evaluation, key, headline)}" for key in others]
    sentences = [f"Of the ground truth, {share} is in the first {ranks}{''.join(best[:1])}."]
    for other in (*others[:1], "sft"):
        if gain := gains.get(f"rank_grpo_over_{other}"):
            what = f"the strongest baseline, {systems[other]}," if other in others else systems[other]
            verb = _VERBS[excludes_zero(gain)]
            sentences.append(f"{systems['rank_grpo']} {verb} {what} in {metric}: {gain_words(gain)}.")
    ahead = [key for key in others if excludes_zero(gains.get(f"rank_grpo_over_{key}")) < 0]
    if len(ahead) > 1:
        names = ", ".join(systems[key] for key in ahead)
        sentences.append(f"{len(ahead)} baselines score clearly higher: {names}.")
    bound = "rank_grpo" + UNGUIDED if "rank_grpo" + UNGUIDED in evaluation else "rank_grpo"
    if (gain := gains.get(f"rank_grpo_over_{bound}")) and excludes_zero(gain) > 0:
        sentences.append(f"Without guidance, its lists are worse: {metric} falls by {gain['mean']:.3f}.")
    if (gain := gains.get(f"{bound}_over_rank_grpo{FREE}")) and excludes_zero(gain) > 0:
        sentences.append(f"Without the constraint, its lists are worse: {metric} falls by {gain['mean']:.3f}.")
    return sentences
