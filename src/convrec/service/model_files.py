"""The files of a model, and what is read from them before an engine loads the weights."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from convrec.data.catalog import Catalog
from convrec.generation.lists import ListSettings
from convrec.generation.model_folders import model_files
from convrec.generation.pretrained import load_tokenizer
from convrec.project.fingerprint import fingerprint


@dataclass(frozen=True)
class ModelFiles:
    """A Hugging Face folder, the catalog as Parquet, and how lists are decoded."""

    checkpoint: Path
    catalog: Path
    settings: ListSettings
    device: str = "auto"
    trust_remote_code: bool = False

    def load_texts(self) -> tuple[Catalog, Any]:
        """Return the catalog and the tokenizer."""
        catalog = Catalog.read(self.catalog)
        return catalog, load_tokenizer(self.checkpoint, trust_remote_code=self.trust_remote_code)

    def fingerprint(self) -> str:
        """Return a short digest of all that the lists depend on: the model's files, the catalog and the settings.

        It reads the weights. Copies of a version on several machines have the same one.
        """
        return fingerprint(asdict(self.settings), [*model_files(self.checkpoint), self.catalog])
