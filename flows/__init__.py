"""Prefect flows. The settings below must be made before Prefect is first imported."""

import os
import signal
import sys
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_SOURCE = str(_ROOT / "src")

# A flow and its stages use the code of this folder. The package installed in a worker's environment is from another
# clone.
if _SOURCE not in sys.path:
    sys.path.insert(0, _SOURCE)
os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([_SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])]))

from convrec.project.machine import limit_threads, quiet_libraries  # noqa: E402  (from that folder)


def _leave(_number: int, _frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)  # EXIT_INTERRUPTED


if sys.argv[:1] == ["-m"]:  # imports take seconds, and Ctrl-C can exit at once during that time
    signal.signal(signal.SIGINT, _leave)

# Prefect's files stay in the project; a slow machine gets more time to start the server.
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
_home = os.environ.setdefault("PREFECT_HOME", str(_ROOT / ".prefect"))
os.environ.setdefault("PREFECT_SERVER_MEMO_STORE_PATH", str(Path(_home, "memo_store.toml")))
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")

quiet_libraries()
limit_threads()  # OpenMP's threads, in this process and its stages
