"""`make code-deps`: writes the code deps into dvc.yaml. Run it after adding, moving or importing a module."""

import re
from pathlib import Path

from convrec.project.code import PACKAGE, stage_code

GRAPH = Path("dvc.yaml")
_STAGE = re.compile(r"^  (\w+):\n    cmd: .*?(?=^    params:)", re.MULTILINE | re.DOTALL)
_CODE_DEP = re.compile(r"^      - src/.*\n", re.MULTILINE)


def code_deps(stage: str) -> list[str]:
    """Return a stage's code deps: files, or a folder if all its files affect the stage's outputs."""
    files = set(stage_code(stage))
    whole: list[Path] = []
    for folder in sorted({file.parent for file in files} - {PACKAGE}):
        inside = {path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
        if len(inside) > 1 and inside <= files | {folder / "__init__.py"}:
            whole.append(folder)
    alone = [file for file in files if not any(file.is_relative_to(folder) for folder in whole)]
    return sorted(path.relative_to(PACKAGE.parents[1]).as_posix() for path in (*whole, *alone))


def with_code_deps(text: str) -> str:
    """Return dvc.yaml's text with the current code deps."""

    def complete(stage: re.Match[str]) -> str:
        deps = "".join(f"      - {dep}\n" for dep in code_deps(stage[1]))
        return _CODE_DEP.sub("", stage[0]) + deps

    return _STAGE.sub(complete, text)


if __name__ == "__main__":
    GRAPH.write_text(with_code_deps(GRAPH.read_text()))
