"""Attention kernels, compilation, half precision and packing change how fast an embedding comes, not what it is."""

import pytest
import torch

from modeling_supclap import modeling_ced
from supclap import CedConfig, CedModel
from support.builders import build_with_encoder, small_model, spectrograms, texts


@torch.no_grad()
@pytest.mark.parametrize("lengths", [[100, 100], [100, 60], [400, 170]], ids=["equal", "padded", "windows"])
def test_the_audio_tower_compiles_to_one_graph(lengths):
    model, inputs = small_model(), spectrograms(lengths)
    expected = model.get_audio_features(**inputs).pooler_output
    torch._dynamo.reset()
    compiled = torch.compile(model.get_audio_features, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(**inputs).pooler_output, expected, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        ([100, 60], {"output_hidden_states": True, "output_attentions": True}),
        ([400, 170], {"output_hidden_states": True}),
    ],
    ids=["padded", "windows"],
)
def test_the_audio_tower_compiles_to_one_graph_with_its_layers(lengths, options):
    model, inputs = small_model(), spectrograms(lengths)
    model.set_attn_implementation("eager")
    expected = model.get_audio_features(**inputs, **options)
    torch._dynamo.reset()
    compiled = torch.compile(model.get_audio_features, backend="eager", fullgraph=True)(**inputs, **options)
    torch.testing.assert_close(compiled.hidden_states, expected.hidden_states, atol=1e-5, rtol=0)
    torch.testing.assert_close(compiled.attentions, expected.attentions, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("text", ["bert", "xlm-roberta", "m2m_100"])
def test_the_text_tower_compiles_to_one_graph(text):
    model, inputs = small_model(text), texts([5, 9])
    expected = model.get_text_features(**inputs).pooler_output
    torch._dynamo.reset()
    compiled = torch.compile(model.get_text_features, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(**inputs).pooler_output, expected, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("audio", ["ast", "htsat", "whisper", "wav2vec2", "hubert", "wavlm"])
def test_another_audio_tower_compiles_with_breaks_to_the_same_embeddings(audio, tokenizer):
    model, processor = build_with_encoder(audio, tokenizer)
    noise = torch.randn(24000, generator=torch.Generator().manual_seed(0)) / 10
    inputs = processor(audio=[noise, noise[:9000]], sampling_rate=16000)
    expected = model.get_audio_features(**inputs).pooler_output
    torch._dynamo.reset()
    compiled = torch.compile(model.get_audio_features, backend="eager")
    torch.testing.assert_close(compiled(**inputs).pooler_output, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("text", ["bert", "xlm-roberta", "m2m_100"])
def test_attention_implementations_agree_in_both_towers(text):
    model, inputs = small_model(text), {**texts([5, 9]), **spectrograms([300, 80])}
    logits = []
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        assert model.audio_model.config._attn_implementation == implementation
        assert model.text_model.config._attn_implementation == implementation
        with torch.no_grad():
            logits.append(model(**inputs).logits_per_audio)
    torch.testing.assert_close(*logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("text", ["bert", "xlm-roberta", "m2m_100"])
def test_gradient_checkpointing_gives_the_same_gradients_in_both_towers(text):
    model, inputs = small_model(text).train(), {**texts([5, 9]), **spectrograms([150, 80])}
    for module in model.modules():
        for name in ("p", "dropout", "attention_dropout", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
            for tower in (model.text_model, model.audio_model):
                assert any(getattr(module, "gradient_checkpointing", False) for module in tower.modules())
        model.zero_grad()
        model(**inputs, return_loss=True).loss.backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-4)


# a unit vector's largest difference from float32, over all entries: about one rounding for each of a dozen operations
@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.02), (torch.float16, 0.0025)])
@pytest.mark.parametrize("how", ["weights", "autocast"])
@torch.no_grad()
def test_half_precision_stays_within_its_bound(dtype, bound, how):
    model, audio, text = small_model(), spectrograms([300, 80]), texts([5, 9])
    model.audio_model.set_input_statistics(torch.full((64,), -40.0), torch.full((64,), 400.0))
    audio["input_features"] = (audio["input_features"] * 20 - 40) * audio["input_features_mask"][..., None]
    expected = model.get_audio_features(**audio).pooler_output, model.get_text_features(**text).pooler_output
    if how == "weights":
        model.to(dtype)
    with torch.autocast("cpu", dtype, enabled=how == "autocast"):
        embeds = model.get_audio_features(**audio).pooler_output, model.get_text_features(**text).pooler_output
    for half, full in zip(embeds, expected, strict=True):
        assert (half.float() - full).abs().max() < bound
        assert not torch.equal(half.float(), full)


@torch.no_grad()
def test_padding_is_left_out_and_changes_nothing(monkeypatch):
    torch.manual_seed(0)
    model = CedModel(CedConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=3)).eval()
    seen = []
    model.blocks[0].register_forward_hook(lambda block, inputs, output: seen.append(output.shape))
    inputs = spectrograms([320, 160, 16])
    monkeypatch.setattr(modeling_ced, "PACKED_WORK", 0)
    packed = model(**inputs)
    monkeypatch.setattr(modeling_ced, "PACKED_WORK", float("inf"))
    padded = model(**inputs)
    assert seen == [(1, 4 * (20 + 10 + 1), 48), (3, 4 * 20, 48)]
    torch.testing.assert_close(packed.last_hidden_state, padded.last_hidden_state, atol=1e-5, rtol=0)
    torch.testing.assert_close(packed.pooler_output, padded.pooler_output, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize(
    ("width", "shorter", "shape"), [(48, 160, (2, 80, 48)), (384, 288, (2, 80, 384)), (384, 160, (1, 120, 384))]
)
def test_padding_is_left_out_only_where_that_saves_enough_work(width, shorter, shape):
    model = CedModel(CedConfig(hidden_size=width, num_hidden_layers=1, num_attention_heads=3)).eval()
    seen = []
    model.blocks[0].register_forward_hook(lambda block, inputs, output: seen.append(output.shape))
    model(**spectrograms([320, shorter]))
    assert seen == [shape]


def test_packing_gives_the_gradients_of_padding(monkeypatch):
    torch.manual_seed(0)
    model = CedModel(CedConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=3)).train()
    gradients = []
    for work in (0, float("inf")):
        monkeypatch.setattr(modeling_ced, "PACKED_WORK", work)
        model.zero_grad()
        model(**spectrograms([320, 160])).pooler_output.square().sum().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)
