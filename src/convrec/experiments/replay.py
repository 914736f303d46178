"""`convrec replay`: estimates from the champion's logged answers what users would accept of another version."""

from datetime import UTC, datetime
from typing import Any

import mlflow
from rich import box
from rich.console import Console
from rich.table import Table

from convrec.config.params import Params
from convrec.errors import InputError
from convrec.files.results import write_json
from convrec.paths import Paths
from convrec.registry.replays import record_replay, replay_version
from convrec.registry.versions import CHAMPION, MODEL_NAME, alias_version, download_version, find_version
from convrec.tracking import connect

ESTIMATORS = {"dr": "doubly robust", "snips": "self-normalised (SNIPS)", "ips": "inverse propensity (IPS)"}


def replay_on_feedback(
    params: Params, paths: Paths, number: str | None, window_days: int, until: datetime | None, feedback: str | None
) -> dict[str, Any]:
    """Return the replay of a version, by default the challenger, as JSON values; record it in the version's run.

    It is also written to `evaluations/`. Raises `InputError` if there is no champion, the version is the champion, or
    no usable answers are stored.
    """
    connect(paths.root)
    champion = alias_version(CHAMPION)
    if champion is None:
        raise InputError("replay: no version is the champion, so no answers to compare with are logged; promote one")
    client = mlflow.MlflowClient()
    version = find_version(client, number)
    if version.version == champion.version:
        raise InputError(f"--version {version.version}: it is the champion already; give another version")
    end = until or datetime.now(UTC)
    model = download_version(f"models:/{MODEL_NAME}/{version.version}")
    found = replay_version(params, paths, model, str(champion.version), window_days, end, feedback)
    result = {
        "version": str(version.version),
        "champion_version": str(champion.version),
        "window_days": window_days,
        "until": end.isoformat(timespec="seconds"),
        **found.to_json(),
    }
    write_json(paths.evaluations / f"replay-version-{version.version}.json", result)
    record_replay(client, version, result)
    return result


def print_replay(result: dict[str, Any]) -> None:
    """Print one row an estimator, and how much the estimates can be trusted."""
    title = f"Accepted items per answer, {result['answers']:,} answers of {result['persons']:,} users, 95 % intervals"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("")
    names = f"version {result['version']}", f"champion, version {result['champion_version']}", "difference"
    for name in names:
        table.add_column(name, justify="right")
    for key, name in ESTIMATORS.items():
        sides = result["challenger"][key], result["champion"]
        cells = [f"{one['mean']:.4f} [{one['low']:.4f}, {one['high']:.4f}]" for one in sides]
        gain = result["differences"][key]
        table.add_row(name, *cells, f"{gain['mean']:+.4f} [{gain['low']:+.4f}, {gain['high']:+.4f}]")
    console = Console(highlight=False, width=120)
    console.print(table)
    console.print(
        f"Effective number of answers: {result['effective_size']:,.1f}. Without support: "
        f"{result['without_support']:.1%} of the version's places (docs/monitoring.md#replay)."
    )
