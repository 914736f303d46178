"""`python -m tests.service.vllm_lists`: vLLM's lists for a file of requests, which join others, on a CPU."""

import argparse
import json
import os
from pathlib import Path

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}

from convrec.service.model_files import ModelFiles  # noqa: E402
from convrec.service.vllm_batching import serve_with_vllm  # noqa: E402
from tests.service.recommending import SETTINGS  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    files = ModelFiles(folder / "model", folder / "catalog.parquet", SETTINGS, "cpu")
    steps: list[int] = []
    served = serve_with_vllm("1", files, 3, 0.1, steps.append)
    served.warm()
    requests = json.loads((folder / "requests.json").read_text())
    futures = []
    for number, (conversation, n) in enumerate(requests):
        if number == 4:
            while len(steps) < 10:
                pass
        (asked,) = served.translator.prepare([conversation], n)
        futures.append(served.decoder.submit(asked))
    assert futures[1].cancel()
    lines = [None if future.cancelled() else _lines(served, future.result(60)) for future in futures]
    (asked,) = served.translator.prepare(["the last one"], 2)
    last = served.decoder.submit(asked)
    served.close()
    (folder / "lists.json").write_text(json.dumps([*lines, _lines(served, last.result(0))]))
    assert max(steps) == 3 and not served.decoder.is_alive


def _lines(served, tokens) -> list[str]:
    return [str(item) for item in served.translator.items(tokens)]


if __name__ == "__main__":
    main()
