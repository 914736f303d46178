"""The files of a model, and what is read from them before an engine loads the weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convrec.data.catalog import Catalog
from convrec.data.parquet import MAX_ITEMS, parquet_frame
from convrec.generation.lists import ListSettings
from convrec.models.pretrained import load_config, load_tokenizer


@dataclass(frozen=True)
class ModelFiles:
    """A Hugging Face folder, the catalog as Parquet, and how lists are decoded."""

    checkpoint: Path
    catalog: Path
    settings: ListSettings
    device: str = "auto"
    trust_remote_code: bool = False

    def load_catalog(self) -> Catalog:
        """Return the catalog."""
        return Catalog.from_frame(parquet_frame(self.catalog, max_rows=MAX_ITEMS))

    def load_texts(self) -> tuple[Catalog, Any, int | None]:
        """Return the catalog, the tokenizer, and the longest context of the model, None if it has no limit."""
        tokenizer = load_tokenizer(self.checkpoint, trust_remote_code=self.trust_remote_code)
        config = load_config(self.checkpoint, trust_remote_code=self.trust_remote_code)
        return self.load_catalog(), tokenizer, getattr(config, "max_position_embeddings", None)
