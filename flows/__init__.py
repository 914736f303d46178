"""Flows: the order, retries and gates of a run. Prefect reads these settings when it is first imported."""

import os
import signal
import sys
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_SOURCE, _HOME = str(_ROOT / "src"), _ROOT / ".prefect"

# A flow runs the code of the folder it stands in, in this process and in those of its stages: the package that is
# installed where a worker runs is of another clone.
if _SOURCE not in sys.path:
    sys.path.insert(0, _SOURCE)
os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([_SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])]))

from convrec.hardware.threads import limit_threads  # noqa: E402  (of that folder)


def _leave(_number: int, _frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)  # EXIT_INTERRUPTED


if sys.argv[:1] == ["-m"]:  # `python -m flows.…` imports Prefect and more, for seconds, before anything is to be ended
    signal.signal(signal.SIGINT, _leave)

# Nothing is sent anywhere, Prefect's files stay in the project, and a slow laptop may take its time to start.
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_HOME", str(_HOME))
os.environ.setdefault("PREFECT_SERVER_MEMO_STORE_PATH", str(_HOME / "memo_store.toml"))
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

# What is logged is no terminal in which a bar could move.
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("TQDM_DISABLE", "1")

limit_threads()  # of OpenMP, in this process and in those of its stages
