"""The scores of a list's items: the model's own probabilities of their tokens."""

from collections.abc import Sequence
from typing import Any

import torch

from convrec.data.catalog import Item
from convrec.generation.engine import TokenIds
from convrec.generation.line_tokens import generation_prompt, tokenize_lines
from convrec.service.translation import Translator
from convrec.training.rl.segmentation import newline_counts, segment_ranks

_MAX_LOGITS = 2**26  # logits in memory at a time


class ItemScorer:
    """Scores the items of lists that a model has written."""

    def __init__(self, model: Any, translator: Translator):
        self._model, self._translator = model, translator
        self._newlines = newline_counts(translator.tokenizer)

    @torch.inference_mode()
    def scores(
        self, prompts: Sequence[TokenIds], completions: Sequence[TokenIds], items: Sequence[Sequence[Item]]
    ) -> list[list[float]]:
        """Return the scores of each list's items; the last item gets the higher of two scores.

        One score is with the end of the list after the item, the other with a newline. The two can differ because a
        token of the item itself may contain the newline (`)\\n`), and the list ends here only because `n` is reached.
        """
        end = self._translator.tokenizer.eos_token_id
        written = [completion[: completion.index(end)] for completion in completions]
        ended = self._item_scores(prompts, written)
        continued = self._item_scores(prompts, self._with_newline(written, items))
        return [[*one[:-1], max(one[-1], other[-1])] for one, other in zip(ended, continued, strict=True)]

    def _with_newline(self, completions: Sequence[TokenIds], items: Sequence[Sequence[Item]]) -> list[TokenIds]:
        """Return the completions with a newline after the last item, as the tokenizer writes it there."""
        lines = sorted({str(own[-1]) for own in items})
        tokenizer = self._translator.tokenizer
        with self._translator.lock:
            tokens = dict(zip(lines, tokenize_lines(lines, tokenizer, generation_prompt(tokenizer)), strict=True))
        longer = []
        for completion, own in zip(completions, items, strict=True):
            last = tokens[str(own[-1])]
            if len(own) == 1:
                longer.append(list(last.first_before_newline))
            else:
                longer.append([*completion[: -len(last.later_at_end)], *last.later_before_newline])
        return longer

    def _item_scores(self, prompts: Sequence[TokenIds], completions: Sequence[TokenIds]) -> list[list[float]]:
        """Return the mean log-probability, in nats, of the tokens of each line, including its newline.

        The probabilities are the model's own, without constraint and repetition penalty.
        """
        length, device = max(map(len, completions)), self._model.device
        rows = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
        written = torch.tensor([[0] * (length - len(c)) + [1] * len(c) for c in completions], device=device)
        scores = []
        chunk = max(1, _MAX_LOGITS // (length * self._model.config.vocab_size))
        for first in range(0, len(rows), chunk):
            part = slice(first, first + chunk)
            logits = self._model(
                input_ids=ids[part],
                attention_mask=mask[part],
                position_ids=(mask[part].cumsum(1) - 1).clamp(min=0),
                logits_to_keep=length + 1,
                use_cache=False,
            ).logits[:, :-1].float()  # fmt: skip
            own = logits.gather(2, ids[part, -length:, None]).squeeze(2) - logits.logsumexp(dim=2)
            ranks = segment_ranks(ids[part, -length:], written[part], self._newlines)
            for values, places in zip(own.cpu(), ranks.cpu(), strict=True):
                scores.append([float(values[places == rank].mean()) for rank in range(int(places.max()) + 1)])
        return scores
