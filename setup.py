"""Adds to the wheel what a project folder needs beside the package, for `convrec init` to write."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PROJECT = (
    *("configs", "flows", "profiles", "prompts", "tasks"),
    *("dvc.yaml", "monitoring.yaml", "params.yaml", "prefect.yaml", "promotion.yaml", ".dvcignore", ".gitignore"),
    "data/raw/feedback/README.md",
)


class WithProject(build_py):
    """Copies the files of a project into the package; an editable installation has the checkout."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for name in PROJECT:
                target = Path(self.build_lib, "convrec", "template", name)
                target.parent.mkdir(parents=True, exist_ok=True)
                if Path(name).is_dir():
                    shutil.copytree(name, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
                else:
                    shutil.copy(name, target)


setup(cmdclass={"build_py": WithProject})
