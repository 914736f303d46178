import torch
from peft import get_peft_model
from transformers import AutoModelForCausalLM

from convrec.generation.export import export_model, lora_config
from tests.training.tiny_sft import TOKENIZER, make_tiny


def test_adapters_are_merged_into_the_model_that_is_written(tmp_path):
    base, saved, folder = (tmp_path / name for name in ("base", "saved", "out"))
    make_tiny().save_pretrained(base)
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), lora_config(r=2, lora_alpha=4, lora_dropout=0.0)
    )
    torch.manual_seed(0)
    for name, value in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value)
    adapted.save_pretrained(saved)
    export_model(saved, base, TOKENIZER, folder, 1.3)
    ids = torch.arange(8)[None]
    written = AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(written(ids).logits, adapted.eval()(ids).logits, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(written(ids).logits, AutoModelForCausalLM.from_pretrained(base)(ids).logits)
    assert written.generation_config.repetition_penalty == 1.3


def test_the_model_has_the_number_format_of_its_base(tmp_path):
    base, saved, folder = (tmp_path / name for name in ("base", "saved", "out"))
    make_tiny().to(torch.bfloat16).save_pretrained(base)
    trained = make_tiny()
    trained.save_pretrained(saved)
    export_model(saved, base, TOKENIZER, folder, 1.0)
    written = AutoModelForCausalLM.from_pretrained(folder)
    assert written.dtype == torch.bfloat16
    for new, old in zip(written.parameters(), trained.parameters(), strict=True):
        assert torch.equal(new, old.to(torch.bfloat16))
