"""Readable samples of rollouts, with hits marked."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from convrec.data.catalog import Catalog
from convrec.data.matching import Truth
from convrec.data.parsing import parse_list
from convrec.training.rl.rewards import completion_text

_SHOWN = 4  # lists of one group


def render_sample(rows: Sequence[dict[str, Any]], completions: Sequence[Any], relevance: Any, catalog: Catalog) -> str:
    """Return the lists of one prompt as Markdown: the prompt, the liked items, then each line with its rank and mark.

    Marks: `+` a hit, `.` another catalog item, `x` not in the catalog. Shape: relevance (B, N).
    """
    prompt = rows[0]["prompt"]
    prompt = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    liked = "; ".join(str(Truth.of(truth)) for truth in rows[0]["groundtruth"])
    parts = ["```", prompt, "```", "", f"Liked: {liked}"]
    for completion, hits in zip(completions, relevance.tolist(), strict=False):
        entries, lines = parse_list(completion_text(completion), catalog), []
        for rank, entry in enumerate(entries):
            named = "" if entry is None else str(entry)
            mark = "x" if entry is None or entry.index is None else "."
            mark = "+" if rank < len(hits) and hits[rank] else mark
            lines.append(f"{rank + 1:3d} {mark} {named}")
        parts += ["", "```", *lines, "```"]
    return "\n".join(parts) + "\n"


class SampleCallback(TrainerCallback):
    """Writes a sample of the rollouts every `every` steps, and passes the file to a sink.

    `rollouts` returns the rows, the completions and the relevance (B, N) of this process's last rollouts.
    """

    def __init__(
        self,
        rollouts: Callable[[], tuple[Sequence[dict[str, Any]], Sequence[Any], Any]],
        catalog: Catalog,
        every: int,
        num_generations: int,
        folder: Path,
        sink: Callable[[Path], None],
    ):
        self._rollouts, self._catalog, self._every = rollouts, catalog, every
        self._size, self._folder, self._sink = min(num_generations, _SHOWN), folder, sink

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self._every or not state.is_world_process_zero:
            return
        rows, completions, relevance = (part[: self._size] for part in self._rollouts())
        path = self._folder / f"step_{state.global_step:06d}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render_sample(rows, completions, relevance, self._catalog), encoding="utf-8")
        self._sink(path)
