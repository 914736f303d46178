"""The notebook shows what its cells give, to a reader who does not run it."""

import re
from pathlib import Path

import nbformat

FILE = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"


def test_the_notebook_has_small_outputs_without_errors_or_paths_of_a_machine():
    cells = [cell for cell in nbformat.read(FILE, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run in order, once"
    assert all(cell.outputs for cell in cells[1:]), "the first only opens the model"
    assert {output.output_type for cell in cells for output in cell.outputs} <= {"execute_result", "display_data"}
    assert FILE.stat().st_size < 60_000
    text = "\n".join(
        str(part) for cell in cells for one in cell.outputs for kind, part in one.data.items() if "/png" not in kind
    )
    assert not re.search(r"(^|[\s\"'=:(])(/\w+){2,}|[A-Z]:\\\\", text) and "NaN" not in text
