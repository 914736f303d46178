"""`python -m tasks.reproduce STAGE [--force]`: `dvc repro` of one stage, with the exit status of the stage's command.

It waits while another DVC process holds the folder's lock, and says which one works with the stage's files.
"""

import logging
import os
import re
import sys

from convrec.errors import EXIT_BAD_INPUT, exit_status, outside_cause

_STATUS = re.compile(r"exited with (-?\d+)$")  # DVC's own status says only that a stage failed


def main() -> int:
    """Return the exit status of the stage's command, 128 + N for signal N, 2 where what it reads is not there.

    Where another DVC process works with the stage's files, it is 75; where DVC itself fails, 1.
    """
    from dvc.cli import parse_args
    from dvc.exceptions import DvcException
    from dvc.stage.exceptions import StageCmdFailedError

    logging.getLogger("dvc").setLevel(logging.CRITICAL)  # what it would tell, the task tells itself
    options = parse_args(["--wait-for-lock", "repro", "--single-item", *sys.argv[1:]])
    try:
        return options.func(options).do_run()
    except DvcException as error:
        cause = error.__cause__
        if isinstance(cause, FileNotFoundError) and cause.filename:
            missing = os.path.relpath(cause.filename)
            sys.stderr.write(
                f"{missing}: no such file or folder, and the stage reads it; run the stage that makes it, or put it "
                "there, or correct its name in params.yaml\n"
            )
            return EXIT_BAD_INPUT
        found = _STATUS.search(str(cause)) if isinstance(cause, StageCmdFailedError) else None
        if found is None:
            outside = outside_cause(error)
            sys.stderr.write(f"dvc repro: {outside or error}{f': {cause}' if cause and not outside else ''}\n")
            return (outside and exit_status(outside)) or 1
        status = int(found.group(1))
        return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
