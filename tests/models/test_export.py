import torch
from peft import get_peft_model
from transformers import AutoModelForCausalLM

from convrec.models.export import export_model, lora_config
from convrec.training.embedded import make_model, train_tokenizer

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


def test_adapters_are_merged_into_the_model_that_is_written(tmp_path):
    tokenizer = train_tokenizer(["a film please"] * 5, [], 300)
    base, saved, folder = (tmp_path / name for name in ("base", "saved", "out"))
    make_model(tokenizer, **SIZES, seed=0).save_pretrained(base)
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), lora_config(r=2, lora_alpha=4, lora_dropout=0.0)
    )
    torch.manual_seed(0)
    for name, value in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value)
    adapted.save_pretrained(saved)
    export_model(saved, base, tokenizer, folder, 1.3)
    ids = torch.arange(8)[None]
    written = AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(written(ids).logits, adapted.eval()(ids).logits, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(written(ids).logits, AutoModelForCausalLM.from_pretrained(base)(ids).logits)
    assert written.generation_config.repetition_penalty == 1.3
