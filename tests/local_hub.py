"""A stand-in for the Hugging Face Hub: serves repositories of the real layout to the real hub library."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants
from tokenizers import ByteLevelBPETokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2TokenizerFast

from tests.data.sources.reddit_movie_sample import write_sample
from tests.generation.small import sizes

MODEL, DUMP = "Qwen/Qwen2.5-0.5B-Instruct", "ZhankuiHe/reddit_movie_large_v1"
COMMIT = "c" * 40
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_model(folder: Path, texts: list[str]) -> None:
    """Write a random Qwen2 model of the size of a test, with a byte-level tokenizer of these texts."""
    folder.mkdir(parents=True)
    trained = ByteLevelBPETokenizer()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trained.train_from_iterator(texts, vocab_size=2000, special_tokens=special, show_progress=False)
    trained.save_model(str(folder))
    tokenizer = Qwen2TokenizerFast.from_pretrained(folder, eos_token=special[2], pad_token=special[0])
    tokenizer.add_special_tokens({"additional_special_tokens": special[1:]})
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        **sizes(layers=2, heads=2) | {"num_key_value_heads": 1},
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.convert_tokens_to_ids(special[0]),
        eos_token_id=tokenizer.convert_tokens_to_ids(special[2]),
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    (folder / "LICENSE").write_text("Apache License 2.0\n")


def write_repositories(folder: Path) -> dict[str, Path]:
    """Write the model and the raw dump, and return their folders by kind and name, as `models/OWNER/NAME`."""
    dump, model = folder / "dump", folder / "model"
    write_sample(dump, num_turns=3_000, num_films=120, seed=3)
    titles = list(json.loads((dump / "id2name.json").read_text()).values())
    write_model(model, ["\n".join(titles), "Recommend movies. User: Assistant:"] * 3)
    return {f"models/{MODEL}": model, f"datasets/{DUMP}": dump}


class LocalHub(ThreadingHTTPServer):
    """Serves folders, by `models/OWNER/NAME` or `datasets/OWNER/NAME`, at one commit; large files are LFS files.

    `asked` lists the requests. `refusals` maps parts of paths to a status and the Hub's error code. `served` has the
    content of files that differs from what the Hub lists, `card` what their README.md states.
    """

    def __init__(self, repositories: dict[str, Path]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories = repositories
        self.asked: list[str] = []
        self.refusals: dict[str, tuple[int, str]] = {}
        self.served: dict[str, bytes] = {}
        self.card = {"license": "apache-2.0"}
        self.address = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> "LocalHub":
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def stand_in(self, monkeypatch: pytest.MonkeyPatch, address: str = "") -> None:
        """Have the hub's library in this process ask this server, or another address."""
        for name in ("HUGGINGFACE_CO_URL_TEMPLATE", "ENDPOINT"):
            value = getattr(constants, name).replace(constants.ENDPOINT, address or self.address)
            monkeypatch.setattr(constants, name, value)


def _is_large(path: Path) -> bool:
    return path.suffix in (".safetensors", ".csv")


def _digest(path: Path) -> str:
    content = path.read_bytes()
    if _is_large(path):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _entry(path: Path) -> dict:
    size, digest = path.stat().st_size, _digest(path)
    large = {"lfs": {"size": size, "sha256": digest, "oid": digest, "pointerSize": 130}} if _is_large(path) else {}
    return {"size": size, "blobId": digest[:40], "oid": digest[:40], **large}


class _Handler(BaseHTTPRequestHandler):
    server: LocalHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        self.server.asked.append(path)
        for part, (status, code) in self.server.refusals.items():
            if part in path:
                return self._answer(status, X_Error_Code=code)
        is_call = path.startswith("api/")
        path = path.removeprefix("api/") if is_call or path.startswith("datasets/") else f"models/{path}"
        kind, owner, name, *rest = [*path.split("/"), "", ""][: max(4, path.count("/") + 1)]
        folder = self.server.repositories.get(f"{kind}/{owner}/{name}")
        if folder is None:
            return self._answer(404, X_Error_Code="RepoNotFound")
        files = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()}
        if not is_call:  # OWNER/NAME/resolve/COMMIT/FILE
            file = files.get("/".join(rest[2:]))
            if file is None:
                return self._answer(404, X_Error_Code="EntryNotFound")
            content = self.server.served.get(file.name, file.read_bytes())
            return self._answer(200, content, ETag=f'"{_digest(file)}"', X_Repo_Commit=COMMIT)
        value: object = {}
        if rest[:1] == ["tree"]:
            value = [{"type": "file", "path": name, **_entry(file)} for name, file in files.items()]
        elif rest[:1] != ["auth-check"]:
            siblings = [{"rfilename": name, **_entry(file)} for name, file in files.items()]
            value = {"id": f"{owner}/{name}", "sha": COMMIT, "siblings": siblings, "cardData": self.server.card}
        return self._answer(200, json.dumps(value).encode(), Content_Type="application/json")

    do_HEAD = do_GET
