"""Partial fine-tuning: layer-wise learning rates, LoRA through peft, frozen towers."""

import peft
import pytest
import torch

from supclap import SupClapModel
from supclap.training.optimizers import apply_layer_decay
from support.builders import small_model, spectrograms, texts


def rates(optimizer, model) -> dict[str, float]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[parameter]: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}


def test_layers_learn_at_decaying_rates():
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    apply_layer_decay(optimizer, (model.text_model, model.audio_model), 0.5)
    found = rates(optimizer, model)
    assert found.keys() == dict(model.named_parameters()).keys()  # none lost, none twice
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(found)
    for name, share in {
        "text_model.encoder.layer.1.output.dense.weight": 1,
        "text_model.encoder.layer.0.output.dense.weight": 0.5,
        "text_model.embeddings.word_embeddings.weight": 0.25,
        "audio_model.norm.weight": 1,
        "audio_model.blocks.1.mlp.fc1.weight": 1,
        "audio_model.blocks.0.mlp.fc1.weight": 0.5,
        "audio_model.patch_embed.proj.weight": 0.25,
        "audio_model.time_pos_embed": 0.25,
        "audio_projection.linear1.weight": 1,
        "logit_scale": 1,
    }.items():
        assert found[name] == pytest.approx(1e-3 * share), name
    assert all(group["weight_decay"] == 0.1 for group in optimizer.param_groups)


@pytest.mark.parametrize("decay", [0, 1.5])
def test_a_layer_decay_out_of_range_is_named(decay):
    model = small_model()
    with pytest.raises(ValueError, match="layer_decay"):
        apply_layer_decay(torch.optim.SGD(model.parameters(), lr=1), [model.text_model], decay)


def test_the_trainer_applies_layer_decay(processor, tmp_path):
    from supclap import SupClapTrainer, SupClapTrainingArguments

    arguments = SupClapTrainingArguments(
        output_dir=tmp_path, layer_decay=0.5, learning_rate=1e-3, text_learning_rate=1e-4, use_cpu=True
    )
    trainer = SupClapTrainer(
        model=small_model(), args=arguments, processing_class=processor, data_collator=lambda batch: batch
    )
    found = rates(trainer.create_optimizer(), trainer.model)
    assert found["clap.audio_model.blocks.0.mlp.fc1.weight"] == pytest.approx(5e-4)
    assert found["clap.text_model.encoder.layer.0.output.dense.weight"] == pytest.approx(5e-5)


def test_lora_trains_the_adapters_alone_and_merges_into_an_ordinary_model(tmp_path):
    model, inputs = small_model(), {**texts([5, 9]), **spectrograms([100, 60])}
    with torch.no_grad():
        before = model(**inputs).logits_per_audio
    config = peft.LoraConfig(
        r=4,
        target_modules=["query", "value", "qkv"],  # of BERT, and of CED
        modules_to_save=["audio_projection", "text_projection"],
    )
    tuned = peft.get_peft_model(model, config)
    tuned.train()
    optimizer = torch.optim.Adam([p for p in tuned.parameters() if p.requires_grad], lr=1e-2)
    tuned(**inputs, return_loss=True).loss.backward()
    trained = {name for name, parameter in tuned.named_parameters() if parameter.requires_grad}
    assert {name.split(".")[-3] if "lora" in name else "projection" for name in trained} == {
        "lora_A",
        "lora_B",
        "projection",
    }
    assert all(any(tower in name for name in trained) for tower in ("text_model", "audio_model"))
    assert all(parameter.grad is not None for parameter in tuned.parameters() if parameter.requires_grad)
    optimizer.step()
    tuned.eval()
    with torch.no_grad():
        after = tuned(**inputs).logits_per_audio
    assert not torch.allclose(after, before, atol=1e-3)
    merged = tuned.merge_and_unload()
    merged.save_pretrained(tmp_path)
    loaded, info = SupClapModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(**inputs).logits_per_audio, after, atol=1e-4, rtol=0)
