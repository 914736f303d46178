"""Validation during a training: scores of the model's greedy lists."""

from collections.abc import Sequence
from typing import Any

from accelerate.utils import gather_object
from trl.models.utils import unwrap_model_for_generation

from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, distinct_prompts
from convrec.evaluation.scoring import mean_scores, score_lists
from convrec.generation.engine import TransformersEngine
from convrec.generation.lists import ListSettings, list_request
from convrec.generation.trie import NO_GUIDANCE, CatalogTrie, Guide
from convrec.training.callbacks import Measure
from convrec.training.padding_free import with_padding


def make_measure(
    trainer: Any,
    rows: list[Row],
    catalog: Catalog,
    trie: CatalogTrie | None,
    guide: Guide | None,
    settings: ListSettings,
    batch_size: int,
    cutoffs: Sequence[int],
) -> Measure:
    """Return a function that scores the trainer's model by its greedy lists for the prompts of `rows`.

    With a `trie`, lists are constrained to the catalog, and guided if there is a `guide`. Each process generates its
    share of the lists, and all return the same scores.
    """
    prompts = distinct_prompts(rows)
    accelerator = trainer.accelerator
    # Every process gets the same number of prompts, so some are repeated: under ZeRO-3 all processes must take part in
    # generating each token.
    repeated = prompts + prompts[: -len(prompts) % accelerator.num_processes]
    mine = repeated[accelerator.process_index :: accelerator.num_processes]
    builder = settings.prompts(trainer.processing_class)
    my_prompts = [builder(row["messages"]) for row in mine]
    requests = []
    if trie is not None:
        weights = guide(mine) if guide else [NO_GUIDANCE] * len(mine)
        requests = [
            list_request(row, catalog, settings.list_length, own) for row, own in zip(mine, weights, strict=True)
        ]

    def measure() -> dict[str, float]:
        reentrant = trainer.args.gradient_checkpointing_kwargs
        unwrapped = unwrap_model_for_generation(
            trainer.model_wrapped, accelerator, gradient_checkpointing_kwargs=reentrant
        )
        with unwrapped as model, with_padding(model):
            engine = TransformersEngine(
                model,
                trainer.processing_class,
                batch_size,
                settings.max_completion_length,
                settings.repetition_penalty,
                trie,
            )
            lists = engine.generate(my_prompts, requests)
        texts = dict(gather_object(list(zip((row["prompt_id"] for row in mine), lists, strict=True))))
        return mean_scores(score_lists(texts, rows, catalog, settings.list_length, cutoffs))

    return measure
