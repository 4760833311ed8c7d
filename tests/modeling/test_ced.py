"""The CED encoder against outputs of the published implementation (tests/reference/README.md)."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from modeling_supclap import modeling_ced
from supclap import CedConfig, CedModel
from supclap.conversion import load_ced_checkpoint
from support.paths import REFERENCE


WEIGHTS = REFERENCE / "ced_original_layout.safetensors"


@pytest.fixture(scope="module")
def expected():
    return np.load(REFERENCE / "ced_expected.npz")


@pytest.fixture(scope="module")
def model():
    return load_ced_checkpoint(WEIGHTS, num_attention_heads=3, num_hidden_layers=3)


@pytest.fixture(params=[0, float("inf")], ids=["packed", "dense"])
def packing(request, monkeypatch):
    """Padding is left out always, or never."""
    monkeypatch.setattr(modeling_ced, "PACKED_WORK", request.param)


def padded(mels: list[torch.Tensor], extra: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    length = max(map(len, mels)) + extra
    features, mask = torch.zeros(len(mels), length, 64), torch.zeros(len(mels), length, dtype=torch.long)
    for i, mel in enumerate(mels):
        features[i, : len(mel)], mask[i, : len(mel)] = mel, 1
    return features, mask


def reference_mels(expected) -> list[torch.Tensor]:
    return [torch.from_numpy(expected[f"mel_db_{i}"]).T for i in range(3)]


@pytest.mark.parametrize("clip", range(3))
@torch.no_grad()
def test_tokens_and_pooled_match_the_published_encoder(model, expected, clip):
    output = model(reference_mels(expected)[clip][None])
    np.testing.assert_allclose(output.last_hidden_state[0], expected[f"tokens_{clip}"], atol=1e-4)
    np.testing.assert_allclose(output.pooler_output[0], expected[f"pooled_{clip}"], atol=1e-4)


@torch.no_grad()
def test_a_padded_batch_matches_the_published_encoder_clip_by_clip(model, expected, packing):
    output = model(*padded(reference_mels(expected), extra=9))
    for clip in range(3):
        np.testing.assert_allclose(output.pooler_output[clip], expected[f"pooled_{clip}"], atol=1e-4)
        tokens = output.last_hidden_state[clip]
        n = len(expected[f"tokens_{clip}"]) // 4
        real = tokens.unflatten(0, (4, -1))[:, :n].flatten(0, 1)
        np.testing.assert_allclose(real, expected[f"tokens_{clip}"], atol=1e-4)


@torch.no_grad()
def test_the_tagging_head_on_our_encoder_gives_the_published_probabilities(model, expected):
    weights = load_file(WEIGHTS)
    for clip, mel in enumerate(reference_mels(expected)):
        pooled = model(mel[None]).pooler_output
        normed = torch.nn.functional.layer_norm(
            pooled, (96,), weights["outputlayer.0.weight"], weights["outputlayer.0.bias"]
        )
        logits = normed @ weights["outputlayer.1.weight"].T + weights["outputlayer.1.bias"]
        np.testing.assert_allclose(logits.sigmoid()[0], expected[f"audioset_probs_{clip}"], atol=1e-4)


def test_sizes_are_read_from_the_weights(model):
    config = model.config
    assert (config.hidden_size, config.num_hidden_layers, config.mlp_ratio) == (96, 3, 4)
    assert (config.target_length, config.patch_size, config.num_mel_bins) == (1012, 16, 64)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda w: w.pop("blocks.1.attn.qkv.bias"), "blocks.1.attn.qkv.bias"),
        (lambda w: w.update({"blocks.1.attn.gate": torch.zeros(3)}), "blocks.1.attn.gate"),
        (lambda w: w.update({"norm.weight": torch.zeros(95)}), "norm.weight"),
        (lambda w: w.pop("time_pos_embed"), "time_pos_embed"),
    ],
    ids=["missing", "unexpected", "mis-shaped", "needed for the sizes"],
)
def test_conversion_names_a_wrong_key(tmp_path, change, named):
    weights = load_file(WEIGHTS)
    change(weights)
    save_file(weights, tmp_path / "ced.safetensors")
    with pytest.raises(ValueError, match=named):
        load_ced_checkpoint(tmp_path / "ced.safetensors", num_attention_heads=3, num_hidden_layers=3)


def test_conversion_of_a_missing_file_names_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing.safetensors"):
        load_ced_checkpoint(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize(
    ("name", "millions"), [("ced-tiny", 5.5), ("ced-mini", 9.6), ("ced-small", 22), ("ced-base", 86)]
)
def test_published_sizes_have_their_published_parameter_counts(name, millions):
    with torch.device("meta"):
        model = CedModel(CedConfig.from_size(name))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.03)


def test_unknown_size_lists_the_known_ones():
    with pytest.raises(ValueError, match="ced-tiny"):
        CedConfig.from_size("ced-huge")


@torch.no_grad()
def test_a_long_clip_is_the_token_mean_of_its_windows(model):
    torch.manual_seed(0)
    clip = torch.randn(1, 2 * 1012 + 500, 64) * 10 - 40
    windows = [clip[:, :1012], clip[:, 1012:2024], clip[:, 2024:]]
    tokens = torch.cat([model(window).last_hidden_state for window in windows], dim=1)
    torch.testing.assert_close(model(clip).pooler_output, tokens.mean(1), atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_last_full_window_of_a_long_clip_counts(model):
    torch.manual_seed(0)
    clip = torch.randn(1, 2 * 1012, 64) * 10 - 40
    changed = clip.clone()
    changed[:, 1012:] += 5
    assert (model(clip).pooler_output - model(changed).pooler_output).abs().max() > 1e-3


@torch.no_grad()
def test_long_clips_do_not_mix_in_a_batch(model, packing):
    torch.manual_seed(0)
    clips = [torch.randn(n, 64) * 10 - 40 for n in (2500, 1500, 300)]
    batch = model(*padded(clips)).pooler_output
    for i, clip in enumerate(clips):
        torch.testing.assert_close(batch[i], model(clip[None]).pooler_output[0], atol=1e-5, rtol=0)


@torch.no_grad()
def test_overlapping_windows_use_the_configured_hop():
    torch.manual_seed(0)
    config = CedConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, target_length=64, window_hop=32)
    model = CedModel(config).eval()
    clip = torch.randn(1, 128, 64)
    tokens = torch.cat([model(clip[:, s : s + 64]).last_hidden_state for s in (0, 32, 64)], dim=1)
    torch.testing.assert_close(model(clip).pooler_output, tokens.mean(1), atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_clip_shorter_than_a_patch_is_embedded_alike_with_and_without_padding(model, packing):
    torch.manual_seed(0)
    short, longer = torch.randn(3, 64) * 10 - 40, torch.randn(100, 64) * 10 - 40
    alone = model(short[None]).pooler_output[0]
    assert alone.isfinite().all()
    torch.testing.assert_close(model(*padded([short, longer])).pooler_output[0], alone, atol=1e-5, rtol=0)


@torch.no_grad()
def test_attention_implementations_agree(model):
    torch.manual_seed(0)
    features, mask = padded([torch.randn(n, 64) * 10 - 40 for n in (300, 120)])
    outputs = []
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        outputs.append(model(features, mask).pooler_output)
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=0)


def test_mel_bands_before_time_are_refused(model):
    with pytest.raises(ValueError, match="time before mel bands"):
        model(torch.zeros(1, 64, 100))


def test_the_input_norm_stays_in_evaluation_mode(model):
    model.train()
    assert not model.init_bn.training
    model.eval()


def test_gradient_checkpointing_gives_the_same_gradients(tiny_model):
    features = torch.randn(2, 64, 64)
    encoder = tiny_model.audio_model.train()
    gradients = []
    for enable in (encoder.gradient_checkpointing_disable, encoder.gradient_checkpointing_enable):
        enable()
        encoder.zero_grad()
        encoder(features).pooler_output.square().sum().backward()
        gradients.append(encoder.blocks[0].mlp.fc1.weight.grad.clone())
    torch.testing.assert_close(*gradients)


def test_patch_dropout_leaves_out_patches_in_training_only():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    whole, dropping = CedModel(CedConfig(**sizes)), CedModel(CedConfig(**sizes, patch_dropout=0.25))
    dropping.load_state_dict(whole.state_dict())
    features, mask = padded([torch.randn(n, 64) for n in (160, 64)])
    assert dropping.train()(features, mask).last_hidden_state.shape[1] == 30
    torch.testing.assert_close(
        dropping.eval()(features, mask).pooler_output, whole.eval()(features, mask).pooler_output
    )


def test_patch_dropout_takes_padding_first():
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = CedModel(CedConfig(**sizes, patch_dropout=0.5)).train()
    features, mask = padded([torch.randn(n, 64) for n in (160, 80)])
    tokens = model(features, mask).last_hidden_state
    assert (tokens[1].abs().sum(-1) > 0).sum() == 20  # all 4 x 5 real patches of the shorter clip are kept


# --- hidden states and attentions -----------------------------------------------------------------------------------


def seen_by_blocks(model, *inputs, **options):
    """The output of the model, and the input of its first block and the output of each."""
    seen = []
    hooks = [model.blocks[0].register_forward_pre_hook(lambda block, inputs: seen.append(inputs[0]))]
    hooks += [block.register_forward_hook(lambda block, inputs, output: seen.append(output)) for block in model.blocks]
    output = model(*inputs, **options)
    for hook in hooks:
        hook.remove()
    return output, seen


@torch.no_grad()
def test_hidden_states_are_those_of_the_blocks_with_zeros_for_padding(model, expected, packing):
    features, mask = padded(reference_mels(expected))
    output, seen = seen_by_blocks(model, features, mask, output_hidden_states=True)
    real = output.last_hidden_state.any(-1)
    assert not real.all()
    assert len(output.hidden_states) == model.config.num_hidden_layers + 1
    for states, block in zip(output.hidden_states, seen, strict=True):
        torch.testing.assert_close(states, block * real[..., None])
    torch.testing.assert_close(model.norm(output.hidden_states[-1])[real], output.last_hidden_state[real])
    torch.testing.assert_close(output.pooler_output, model(features, mask).pooler_output, atol=1e-5, rtol=0)


@torch.no_grad()
def test_hidden_states_of_windows_stand_in_a_row(model):
    window = model.config.target_length
    clips = torch.randn(2, window + 200, 64, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, window + 200, dtype=torch.long)
    mask[1, window - 50 :] = 0
    output = model(clips, mask, output_hidden_states=True)
    for state in output.hidden_states:
        assert state.shape == output.last_hidden_state.shape
    real = output.last_hidden_state.any(-1)
    torch.testing.assert_close(model.norm(output.hidden_states[-1])[real], output.last_hidden_state[real])
    assert not output.hidden_states[-1][~real].any()


@pytest.fixture
def eager(model):
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    yield model
    model.set_attn_implementation(before)


@torch.no_grad()
def test_attentions_are_shares_of_the_real_tokens(eager, expected, packing):
    output = eager(*padded(reference_mels(expected)), output_attentions=True)
    batch, tokens = output.last_hidden_state.shape[:2]
    real = output.last_hidden_state.any(-1)
    assert len(output.attentions) == eager.config.num_hidden_layers
    for weights in output.attentions:
        assert weights.shape == (batch, eager.config.num_attention_heads, tokens, tokens)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        assert not weights.masked_select(~real[:, None, None]).any()


def test_attentions_of_an_implementation_without_weights_are_refused(model):
    with pytest.raises(ValueError, match=r"output_attentions=True is not supported with attn_implementation='sdpa'"):
        model(torch.zeros(1, 100, 64), output_attentions=True)


def test_attentions_of_several_windows_are_refused(eager):
    with pytest.raises(ValueError, match="clips of more than one window"):
        eager(torch.zeros(1, eager.config.target_length + 100, 64), output_attentions=True)


def test_the_configuration_may_ask_for_hidden_states():
    config = CedConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=3, output_hidden_states=True)
    assert len(CedModel(config)(torch.zeros(1, 100, 64)).hidden_states) == 3
