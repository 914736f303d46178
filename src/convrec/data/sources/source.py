"""What every source of data returns, and several sources as one."""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from convrec.data.catalog import Catalog
from convrec.data.schemas import conform
from convrec.project.errors import InputError


class Source(NamedTuple):
    """The catalog and the rows of a source.

    `rows` have the canonical columns. `splits` names each row's split, if the source has splits of its own. Rows with
    the same value of the column `group` stay together when rows are split by shares; rows without one are grouped by
    conversation. `world` has the oracle's lists and the tastes of the embedded world.
    """

    catalog: Catalog
    rows: pd.DataFrame
    splits: pd.Series | None = None
    group: str = "conversation_id"
    world: pd.DataFrame | None = None


def combine(sources: Mapping[str, Source]) -> Source:
    """Return the catalog and the world of the first source, and the rows of all, in order.

    Ids of the rows of other sources begin with the source's name, because two sources may use the same ids. Raises
    `InputError` if a source has splits of its own.
    """
    (_, first), *others = sources.items()
    if not others:
        return first
    for name, source in sources.items():
        if source.splits is not None:
            raise InputError(f"data.source = {list(sources)}: {name!r} has splits of its own; use it alone")
    parts = [conform(first.rows.reset_index(drop=True))]
    for name, source in others:
        if not source.rows.empty:
            rows = conform(source.rows.reset_index(drop=True))
            parts.append(rows.assign(**{key: f"{name}/" + rows[key] for key in ("conversation_id", "prompt_id")}))
    return first._replace(rows=pd.concat(parts, ignore_index=True))
