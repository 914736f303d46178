"""The registered model as MLflow loads it: conversations in, ranked lists out. MLflow runs this file by itself."""

from typing import Any

import mlflow
import pandas as pd
from mlflow.pyfunc.model import PythonModel, PythonModelContext


class Recommender(PythonModel):
    """Answers a table with `conversation` (lines `User: …` and `Assistant: …`) and optional `seen_titles`."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load checkpoint and catalog."""
        from convrec.data.catalog import Catalog  # noqa: PLC0415  (the package travels with the model)
        from convrec.device import pick_device  # noqa: PLC0415
        from convrec.generation.engine import TransformersEngine  # noqa: PLC0415
        from convrec.generation.lists import Settings  # noqa: PLC0415

        self._settings = settings = Settings(**context.model_config)
        self._catalog = Catalog.from_frame(pd.read_parquet(context.artifacts["catalog"]))
        self._engine = TransformersEngine.load(
            context.artifacts["model"],
            pick_device("auto"),
            64,
            settings.max_completion_length,
            settings.repetition_penalty,
        )
        self._prompts = settings.prompts(self._engine.tokenizer)

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> list[list[str]]:
        """Return for each row at most `max_items` catalog items, best first, without seen titles."""
        from convrec.parsing import parse_list  # noqa: PLC0415

        prompts = [self._prompts.of_text(text) for text in model_input["conversation"]]
        if "seen_titles" in model_input:
            seen_lists = [[] if value is None else list(value) for value in model_input["seen_titles"]]
        else:
            seen_lists = [[] for _ in prompts]
        answers = []
        for text, seen_titles in zip(self._engine.generate(prompts), seen_lists, strict=True):
            seen = self._catalog.indices_of_titles(seen_titles)
            known = [entry.index for entry in parse_list(text, self._catalog) if entry and entry.index is not None]
            names = [str(self._catalog.items[index]) for index in known if index not in seen]
            answers.append(list(dict.fromkeys(names))[: (params or {}).get("max_items", self._settings.list_length)])
        return answers


mlflow.models.set_model(Recommender())
