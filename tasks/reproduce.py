"""`python -m tasks.reproduce STAGE [--force]`: `dvc repro` of one stage, which ends when what started it has ended."""

import sys

from dvc.cli import main

from convrec.training.launch import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(["--wait-for-lock", "repro", "--quiet", "--single-item", *sys.argv[1:]]))
