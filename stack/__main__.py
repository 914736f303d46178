"""`python -m stack up|down|status`: runs the native stack of this folder."""

import argparse
import sys
import time
from pathlib import Path
from shlex import quote

from stack.native import Stack
from stack.process import StackError
from stack.services import SERVICES
from stack.settings import PORTS

_MAX_PORT = 65535
_FOLDER = Path(".stack")
_INTERRUPTED = 130  # a shell's status for a command ended by Ctrl-C


def _port(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not number.isdecimal() or int(number) > _MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form mlflow=5001, with a port from 0 to {_MAX_PORT}")
    return name, int(number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stack", description="Run the team's servers on this machine.")
    parser.add_argument("--folder", type=Path, default=_FOLDER, help="data, logs and secrets (default: %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start the servers that are not running")
    up.add_argument(
        "--port",
        type=_port,
        action="append",
        default=[],
        metavar="SERVER=PORT",
        help=f"port of {', '.join(PORTS)}; default: the usual port, or any free port if it is taken",
    )
    down = commands.add_parser("down", help="stop the servers; the data stay")
    down.add_argument("--remove", action="store_true", help="also remove data, logs and secrets")
    commands.add_parser("status", help="show what is running; exit status 1 unless all servers run")
    return parser


def _fixed(ports: list[tuple[str, int]]) -> dict[str, int]:
    names = [name for name, _ in ports]
    for name in names:
        if names.count(name) > 1:
            raise StackError(f"--port: {name} is given twice; give it once")
    return dict(ports)


def _hints(folder: Path) -> str:
    """Return instructions for using and stopping the servers of a folder."""
    down = "make stack-down" if folder == _FOLDER else f"python -m stack --folder {quote(str(folder))} down"
    return (
        f"To use it in a shell: set -a; . {quote(str(folder / 'env'))}; set +a\n"
        "Log in to MLflow's page with MLFLOW_TRACKING_USERNAME and _PASSWORD of that file, to Prefect's with\n"
        f"its PREFECT_API_AUTH_STRING. Stop it with: {down}"
    )


def _print_status(stack: Stack) -> bool:
    """Print a line for each service; return whether all are running."""
    running = True
    for name in SERVICES:
        pid = stack.pid(name)
        running = running and pid is not None
        address = stack.address(name) if pid and name in PORTS else ""
        print(f"{name:<12} {f'pid {pid}' if pid else 'stopped':<12} {address}".rstrip())
    return running


def main() -> None:
    """Run the command line."""
    options = _parser().parse_args()
    try:
        stack = Stack(options.folder, _fixed(options.port) if options.command == "up" else None)
        if options.command == "up":
            started = time.monotonic()
            stack.up()
            _print_status(stack)
            print(f"Ready after {time.monotonic() - started:.0f} s. {_hints(options.folder)}")
        elif options.command == "down":
            stack.down(options.remove)
        elif not _print_status(stack):
            sys.exit(1)
    except StackError as error:
        print(f"stack: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print(
            "stack: interrupted; servers that were started are still running (python -m stack status)", file=sys.stderr
        )
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
