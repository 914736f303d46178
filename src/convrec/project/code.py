"""The keys by which trainings, comparisons and cached lists are found again: of parameters, inputs, code and versions.

The code that decides what a stage writes is the modules that it imports; comments, docstrings and formatting do not
change its digest. dvc.yaml names the packages that hold it.
"""

import ast
import hashlib
import json
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).parents[1]
_ROOT = PACKAGE.parent
# Packages that do not change what is computed; their imports are not followed.
PLUMBING = (
    "convrec.project",  # parameters reach a stage as values, which DVC compares
    "convrec.registry",  # records, and fetches the model that a training starts from
    "convrec.service",  # imported by the registry
    "convrec.training.launch",  # starts processes
)
MEASURES = "convrec.evaluation"  # only measures in a training and chooses among checkpoints: an edit retrains nothing
TRAINERS = ("accelerate", "peft", "torch", "transformers", "trl")  # the libraries that decide what a training makes


class Key(NamedTuple):
    """What a piece of work depends on, as two digests of 16 hexadecimal digits.

    - `task`: of parameters and inputs; interrupted work with the same one resumes.
    - `made_by`: of code and library versions; finished work is used again only if this is the same as well.
    """

    task: str
    made_by: str

    def __str__(self) -> str:
        return "".join(self)


def make_key(
    parameters: dict[str, Any], inputs: Iterable[Path], code: Iterable[Path] = (), libraries: Iterable[str] = ()
) -> Key:
    """Return the key of work with these parameters (JSON values) and inputs, by these modules and libraries.

    An input counts with its name and bytes, a folder with those of all its files. A library that is not installed has
    no version.
    """
    task = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode())
    for path in inputs:
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            task.update(file.name.encode())
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    task.update(block)
    made_by = hashlib.sha256(json.dumps({name: _version(name) for name in libraries}, sort_keys=True).encode())
    for file in code:
        content = _syntax(file.read_text(encoding="utf-8")).encode()
        made_by.update(f"{file.relative_to(_ROOT).as_posix()} {len(content)} ".encode() + content)
    return Key(task.hexdigest()[:16], made_by.hexdigest()[:16])


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _file(module: str) -> Path | None:
    """Return the file of a module of this package, else None."""
    path = _ROOT.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


@cache
def _imports(file: Path) -> frozenset[str]:
    """Return the modules of this package that a file imports, anywhere in it."""
    modules = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            modules |= {name if _file(name) else node.module for name in names}
    return frozenset(name for name in modules if _file(name))


def code_files(modules: Iterable[str], left_out: Iterable[str] = PLUMBING) -> list[Path]:
    """Return the files that these modules are made of, sorted: their own and, by imports, those of this package.

    To import a module runs the `__init__.py` of its packages, which count unless they are empty. What lies in
    `left_out`, modules or packages, is not followed.
    """
    ignored = tuple(left_out)
    found: set[Path] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        file = _file(module)
        is_ignored = any(module == name or module.startswith(f"{name}.") for name in ignored)
        if file is None or file in found or is_ignored or module == PACKAGE.name:
            continue
        found.add(file)
        waiting += [*_imports(file), module.rpartition(".")[0]]
    return sorted(file for file in found if file.stat().st_size)


def stage_code(stage: str) -> list[Path]:
    """Return the modules that decide what a stage of dvc.yaml writes."""
    measured = () if stage in ("guidance", "evaluate", "report") else (MEASURES,)
    return code_files([f"{PACKAGE.name}.pipeline.stages.{stage}"], (*PLUMBING, *measured))


@cache
def _syntax(text: str) -> str:
    """Return the syntax tree of a module as text, without docstrings and positions."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                first = 0 if ast.get_docstring(node, clean=False) is None else 1
                node.body = node.body[first:]
    return ast.dump(tree)
