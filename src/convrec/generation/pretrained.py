"""Models and tokenizers as they are loaded: weights from safetensors alone, and no code that lies beside them.

Nothing else in the library calls `from_pretrained` of a model, a configuration or a tokenizer. A tokenizer's chat
template is changed so that the same conversation always has the same prompt, here and wherever the model is saved to.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

from convrec.project.errors import InputError, outside_cause

_ATTENTION = (None, "eager", "sdpa")  # of transformers itself; for others it can load kernels from the hub
_DOWNLOAD = "download it again, or use another model"

# What is put before a chat template. Each line ends in a newline, which Jinja drops after a block (`trim_blocks`).
_DATE = {"%d": "26", "%b": "Jul", "%B": "July", "%m": "07", "%Y": "2024"}  # Llama's own, where there is no clock
_REPLACED = "".join(f".replace('{directive}', '{value}')" for directive, value in _DATE.items())
_FIXED = {
    "strftime_now": f"{{% macro strftime_now(format) %}}{{{{ format{_REPLACED} }}}}{{% endmacro %}}\n",
    "enable_thinking": "{% set enable_thinking = false %}\n",  # a completion is the list alone
}
# Turns of one role in a row become one, a first turn of the assistant follows an empty one of the user, and a system
# message becomes the user's: a later one, or with KEPT = 0 each.
_MERGED = """{% set merged = namespace(turns=[]) %}
{% for message in messages %}
{% set role = 'user' if message.role == 'system' and loop.index > KEPT else message.role %}
{% if role == 'assistant' and merged.turns | rejectattr('role', 'equalto', 'system') | list | length == 0 %}
{% set merged.turns = merged.turns + [{'role': 'user', 'content': ''}] %}
{% endif %}
{% if merged.turns and merged.turns[-1].role == role %}
{% set text = merged.turns[-1].content + '\n\n' + message.content %}
{% set merged.turns = merged.turns[:-1] + [{'role': role, 'content': text}] %}
{% else %}
{% set merged.turns = merged.turns + [{'role': role, 'content': message.content}] %}
{% endif %}
{% endfor %}
{% set messages = merged.turns %}
"""
_CHATS = ("u", "su", "uu", "au", "uau", "uaau", "usu", "ssu", "sau")  # roles of the turns that a template must render
_ROLES = {"s": "system", "u": "user", "a": "assistant"}


@contextmanager
def refusals(source: str | Path, parameter: str = "base_model.trust_remote_code") -> Iterator[None]:
    """Turn what transformers says of a model that it does not load into an `InputError`.

    Code that may not run and pickled weights are told as such. What the machine lacks, space or memory, is raised on.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        text = str(error)
        if outside_cause(error) is not None or "out of memory" in text or isinstance(error, MemoryError):
            raise
        if isinstance(error, ValueError) and "trust_remote_code" in text:
            raise InputError(
                f"{source}: it needs the code in its repository, which is not run by default; read that code, "
                f"then set {parameter} to true, or use another model"
            ) from None
        if isinstance(error, OSError) and "model.safetensors" in text:
            raise InputError(
                f"{source}: no *.safetensors; weights in .bin or .pt files are pickles, which can run code, and are "
                "not read: take a revision with safetensors, or save it so (`save_pretrained`) where it is trusted"
            ) from None
        problem = f"{type(error).__name__}: {' '.join(text.split())[:300]}"
        raise InputError(f"{source}: not a model that can be loaded ({problem}); {_DOWNLOAD}") from None


def load_config(source: str | Path, *, trust_remote_code: bool = False, **options: Any) -> Any:
    """Return the configuration of a Hugging Face name or folder.

    Raises `InputError` where it takes other code: that of its repository, or attention kernels of the hub.
    """
    with refusals(source):
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code, **options)
    parts = [config, *(part for name in config.sub_configs if (part := getattr(config, name, None)) is not None)]
    if other := next((name for part in parts if (name := part._attn_implementation) not in _ATTENTION), None):
        raise InputError(
            f"{source}: its config.json chooses the attention {other!r:.100}, which may load code from the hub; remove "
            "_attn_implementation from it"
        )
    return config


def load_model(source: str | Path, *, trust_remote_code: bool = False, **options: Any) -> Any:
    """Return the model of a Hugging Face name or folder; `options` are those of `from_pretrained`.

    Raises `InputError` where there are no safetensors, where one of its files is damaged, tensors are missing, inf or
    NaN, and where it takes code that is not trusted.
    """
    from transformers import AutoModelForCausalLM  # noqa: PLC0415  (10 s to import)

    loader: Any = AutoModelForCausalLM
    pinned = {name: options[name] for name in ("revision",) if name in options}
    load_config(source, trust_remote_code=trust_remote_code, **pinned)  # no kernels of the hub
    options |= {"use_safetensors": True, "trust_remote_code": trust_remote_code}
    with refusals(source):
        model, found = loader.from_pretrained(source, output_loading_info=True, ignore_mismatched_sizes=True, **options)
    if other := sorted(found["mismatched_keys"]):
        name, *shapes = other[0]
        wanted = " and not ".join(str(tuple(shape)) for shape in shapes)
        raise InputError(f"{source}: its weights do not fit its config.json ({name} is {wanted}); {_DOWNLOAD}")
    if missing := sorted(found["missing_keys"]):  # transformers would initialize them at random
        raise InputError(f"{source}: its weights lack {missing[0]} ({len(missing)} tensors in all); {_DOWNLOAD}")
    if bad := next((name for name, weight in model.state_dict().items() if not weight.isfinite().all()), None):
        raise InputError(f"{source}: its weights are damaged ({bad} has inf or NaN); {_DOWNLOAD}")
    return model


def load_tokenizer(source: str | Path, *, trust_remote_code: bool = False, **options: Any) -> Any:
    """Return the tokenizer of a Hugging Face name or folder, as it was saved, padding on the left.

    For a Qwen2 folder AutoTokenizer always builds Qwen's own tokenizer class, which puts Qwen's word splitting in the
    place of the saved one; a tokenizer that was saved without a class of its own is loaded from its file alone.
    Its chat template, if any, is that of `fixed_template`. Raises `InputError` where its code lies beside it and is
    not trusted, and where its chat template cannot render chats.
    """
    config = Path(source) / "tokenizer_config.json"
    with refusals(source):
        saved = json.loads(config.read_text(encoding="utf-8")).get("tokenizer_class") if config.is_file() else None
        if saved == "TokenizersBackend":
            loader: Any = PreTrainedTokenizerFast
            options["added_tokens_decoder"] = {}  # those of tokenizer.json, without a copy of each in Python
        else:
            loader, options = AutoTokenizer, {"trust_remote_code": trust_remote_code, **options}
        tokenizer = loader.from_pretrained(source, padding_side="left", **options)
        if tokenizer.chat_template is not None:
            tokenizer.chat_template = fixed_template(tokenizer, str(source))
    return tokenizer


def fixed_template(tokenizer: Any, what: str) -> str:
    """Return a tokenizer's chat template, with a fixed date and without thinking, that renders all kinds of chats.

    If the template refuses turns or drops their words, turns are merged in it. Raises `InputError`, which names `what`,
    if that does not help.
    """
    template: str = tokenizer.get_chat_template()
    lines = [line for name, line in _FIXED.items() if name in template and line not in template]
    template = "".join([*lines, template])
    problem = ""
    for merged in ("", _MERGED.replace("KEPT", "1"), _MERGED.replace("KEPT", "0")):
        problem = next(filter(None, (_problem(tokenizer, merged + template, roles) for roles in _CHATS)), "")
        if not problem:
            return merged + template
    raise InputError(f"{what}: its chat template {problem}; give it another one in chat_template.jinja")


def _problem(tokenizer: Any, template: str, roles: str) -> str:
    """Return what is wrong with a template's rendering of a chat with such turns; "" if nothing is."""
    chat = [{"role": _ROLES[role], "content": f"word{place}"} for place, role in enumerate(roles)]
    named = " ".join(message["role"] for message in chat)
    try:
        text = tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False, add_generation_prompt=True)
    except (TemplateError, TypeError, ValueError) as error:
        return f"cannot render turns of {named} ({error})"
    lost = [message["content"] for message in chat if message["content"] not in text]
    return f"drops words from turns of {named}" if lost else ""


def require_chat(tokenizer: Any, what: str) -> None:
    """Raise `InputError`, which names `what`, if a tokenizer has no chat template or no end token."""
    if tokenizer.chat_template is None:
        raise InputError(f"{what}: its tokenizer has no chat template; add chat_template.jinja to the folder")
    if tokenizer.eos_token_id is None:
        raise InputError(f"{what}: its tokenizer has no end token; name it as eos_token in tokenizer_config.json")
