"""What every source of data returns."""

from typing import NamedTuple

import pandas as pd
import polars as pl

from convrec.data.catalog import Catalog


class Source(NamedTuple):
    """The catalog and the rows of a source.

    `rows` have the canonical columns. `splits` names each row's split, if the source has splits of its own. Rows with
    the same value of the column `group` stay together when rows are split by shares; rows without one are grouped by
    conversation. `world` has the oracle's lists and the tastes of the embedded world. `exposure` has one row for each
    item that users were shown (see `data.exposure`).
    """

    catalog: Catalog
    rows: pd.DataFrame
    splits: pd.Series | None = None
    group: str = "conversation_id"
    world: pd.DataFrame | None = None
    exposure: pl.DataFrame | None = None
