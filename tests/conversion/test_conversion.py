"""Published checkpoints in random weights: converted models give what the published code gives, or name the wrong key.

CED is compared with stored outputs of its implementation (tests/reference), SONAR with the same architecture built from
torch's own transformer layers, LAION-CLAP with Transformers' ClapModel.
"""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel, AutoProcessor

from supclap import SupClapModel
from supclap.conversion import (
    load_ced_checkpoint,
    load_laion_clap_checkpoint,
    load_ml_clap_checkpoint,
    load_sonar_checkpoint,
)
from supclap.conversion.convert import KINDS, convert
from supclap.errors import LicenseError
from supclap.publishing.licenses import license_of_model, part_licenses
from supclap.publishing.model_card import build_card, write_card
from supclap_cli import main
from support.builders import build_clap, clap_extractor
from support.paths import REFERENCE


WIDTH, HEADS, LAYERS, FFN, VOCAB = 32, 4, 2, 48, 50
# the tokens that fairseq2 and Transformers number differently; all others are the same
FAIRSEQ2 = {"<pad>": 0, "<unk>": 1, "<s>": 2, "</s>": 3}
TRANSFORMERS = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}


def ced_original() -> dict[str, torch.Tensor]:
    return load_file(REFERENCE / "ced_original_layout.safetensors")


def ced_hub() -> dict[str, torch.Tensor]:
    """The same weights by the names of the Hub folder, where only the tagging head is outside the encoder."""
    return {
        name if name.startswith("outputlayer.") else "encoder." + name.replace("init_bn.1.", "init_bn."): value
        for name, value in ced_original().items()
    }


def write_ced_config(folder: Path, **changes) -> None:
    config = {"model_type": "ced", "num_heads": 3, "embed_dim": 96, "depth": 3, "target_length": 1012, **changes}
    (folder / "config.json").write_text(json.dumps(config))


def load_ced(path: Path):
    return load_ced_checkpoint(path, num_attention_heads=3, num_hidden_layers=3)


def load_sonar(path: Path):
    return load_sonar_checkpoint(path, num_attention_heads=HEADS, num_hidden_layers=LAYERS)


def load_ml_clap(path: Path):
    return load_ml_clap_checkpoint(
        path, audio_attention_heads=3, text_attention_heads=HEADS, audio_layers=3, text_layers=LAYERS
    )


def sonar_fairseq2() -> dict[str, torch.Tensor]:
    """Random weights of a small SONAR text encoder by the names of fairseq2."""
    torch.manual_seed(0)
    shapes = {
        "encoder_frontend.embed.weight": (VOCAB, WIDTH),
        "layer_norm.weight": (WIDTH,),
        "layer_norm.bias": (WIDTH,),
    }
    for layer in range(LAYERS):
        name = f"encoder.layers.{layer}."
        for part, (rows, columns) in {
            "self_attn.q_proj": (WIDTH, WIDTH),
            "self_attn.k_proj": (WIDTH, WIDTH),
            "self_attn.v_proj": (WIDTH, WIDTH),
            "self_attn.output_proj": (WIDTH, WIDTH),
            "ffn.inner_proj": (FFN, WIDTH),
            "ffn.output_proj": (WIDTH, FFN),
        }.items():
            shapes[f"{name}{part}.weight"], shapes[f"{name}{part}.bias"] = (rows, columns), (rows,)
        for part in ("self_attn_layer_norm", "ffn_layer_norm"):
            shapes[f"{name}{part}.weight"] = shapes[f"{name}{part}.bias"] = (WIDTH,)
    return {name: torch.randn(shape) * 0.2 for name, shape in shapes.items()}


@torch.no_grad()
def sonar_reference(weights: dict[str, torch.Tensor], texts: list[list[int]]) -> torch.Tensor:
    """Sentence embeddings by torch's pre-norm transformer layers: scaled embeddings, sinusoids, mean of the tokens.

    Positions count from 2, as in models that come from fairseq.
    """
    frequencies = torch.exp(-math.log(10000) * torch.arange(WIDTH // 2) / (WIDTH // 2 - 1))
    embeddings = []
    for ids in texts:
        angles = (torch.arange(len(ids)) + 2.0)[:, None] * frequencies
        hidden = weights["encoder_frontend.embed.weight"][ids] * math.sqrt(WIDTH)
        hidden = (hidden + torch.cat([angles.sin(), angles.cos()], dim=1))[None]
        for index in range(LAYERS):
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, FFN, norm_first=True, batch_first=True).eval()
            own = {
                name.removeprefix(f"encoder.layers.{index}."): value
                for name, value in weights.items()
                if name.startswith(f"encoder.layers.{index}.")
            }
            for kind in ("weight", "bias"):
                joint = torch.cat([own[f"self_attn.{side}_proj.{kind}"] for side in "qkv"])
                getattr(layer.self_attn, f"in_proj_{kind}").copy_(joint)
                getattr(layer.self_attn.out_proj, kind).copy_(own[f"self_attn.output_proj.{kind}"])
                getattr(layer.linear1, kind).copy_(own[f"ffn.inner_proj.{kind}"])
                getattr(layer.linear2, kind).copy_(own[f"ffn.output_proj.{kind}"])
                getattr(layer.norm1, kind).copy_(own[f"self_attn_layer_norm.{kind}"])
                getattr(layer.norm2, kind).copy_(own[f"ffn_layer_norm.{kind}"])
            hidden = layer(hidden)
        hidden = nn.functional.layer_norm(hidden, (WIDTH,), weights["layer_norm.weight"], weights["layer_norm.bias"])
        embeddings.append(hidden[0].mean(0))
    return torch.stack(embeddings)


def sonar_texts() -> tuple[list[list[int]], dict[str, torch.Tensor]]:
    """Two texts `[language] words </s>`, one with an unknown word, in the numbers of fairseq2 and of Transformers."""
    published = [[45, 10, 11, FAIRSEQ2["<unk>"], 12, FAIRSEQ2["</s>"]], [46, 20, 21, FAIRSEQ2["</s>"]]]
    renumber = {FAIRSEQ2[token]: TRANSFORMERS[token] for token in FAIRSEQ2}
    rows = [[renumber.get(token, token) for token in text] for text in published]
    ids = torch.full((2, 6), TRANSFORMERS["<pad>"])
    mask = torch.zeros(2, 6, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), 1
    return published, {"input_ids": ids, "attention_mask": mask}


def mean_pooled(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    weights = inputs["attention_mask"][..., None]
    return (model(**inputs).last_hidden_state * weights).sum(1) / weights.sum(1)


def ml_clap(temperature: float = 0.05) -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    weights = {f"audio_encoder.model.{name}": value for name, value in ced_original().items()}
    weights["audio_encoder.model.front_end.0.mel_scale.fb"] = torch.zeros(257, 64)
    weights.update({f"text_encoder.model.{name}": value for name, value in sonar_fairseq2().items()})
    for side, width in (("audio", 96), ("text", WIDTH)):
        for position, columns in ((0, width), (2, 24)):
            weights[f"{side}_proj.{position}.weight"] = torch.randn(24, columns) * 0.2
            weights[f"{side}_proj.{position}.bias"] = torch.randn(24) * 0.2
    weights["temperature"] = torch.tensor(temperature)
    return weights


@pytest.fixture(scope="module")
def expected():
    return np.load(REFERENCE / "ced_expected.npz")


@torch.no_grad()
def test_a_hub_folder_of_ced_gives_the_published_outputs(expected, tmp_path):
    save_file(ced_hub(), tmp_path / "model.safetensors")
    write_ced_config(tmp_path)
    model = load_ced_checkpoint(tmp_path)
    for clip in range(3):
        output = model(torch.from_numpy(expected[f"mel_db_{clip}"]).T[None])
        np.testing.assert_allclose(output.last_hidden_state[0], expected[f"tokens_{clip}"], atol=1e-4)


@torch.no_grad()
def test_sonar_in_fairseq2_naming_gives_the_architectures_embeddings(tmp_path):
    weights = sonar_fairseq2()
    torch.save({"model": weights}, tmp_path / "sonar.pt")
    published, inputs = sonar_texts()
    embeddings = mean_pooled(load_sonar(tmp_path / "sonar.pt"), inputs)
    torch.testing.assert_close(embeddings, sonar_reference(weights, published), atol=1e-5, rtol=0)


@torch.no_grad()
def test_sonar_in_the_form_of_transformers_is_what_it_was(tmp_path):
    torch.save(sonar_fairseq2(), tmp_path / "sonar.pt")
    model = load_sonar(tmp_path / "sonar.pt")
    model.config.encoder_layerdrop = 0.05  # as in the port on the Hub
    model.save_pretrained(tmp_path / "port")
    loaded = load_sonar_checkpoint(tmp_path / "port")
    inputs = sonar_texts()[1]
    torch.testing.assert_close(mean_pooled(loaded, inputs), mean_pooled(model, inputs))
    assert loaded.config.encoder_layerdrop == 0


def test_sonar_at_its_published_sizes_has_its_published_number_of_parameters():
    # 24 layers, width 1,024, feed-forward 8,192, 256,206 tokens: 766.1 million
    from transformers import M2M100Config
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100Encoder

    with torch.device("meta"):
        config = M2M100Config(vocab_size=256206, encoder_layers=24, encoder_ffn_dim=8192)
        assert sum(p.numel() for p in M2M100Encoder(config).parameters()) / 1e6 == pytest.approx(766.1, abs=0.1)


@torch.no_grad()
def test_ml_clap_gives_the_published_composition(expected, tmp_path):
    weights = ml_clap(temperature=0.05)
    torch.save(weights, tmp_path / "pretrain.pt")
    model = load_ml_clap(tmp_path / "pretrain.pt")

    def projected(pooled, side):
        hidden = torch.relu(pooled @ weights[f"{side}_proj.0.weight"].T + weights[f"{side}_proj.0.bias"])
        return nn.functional.normalize(hidden @ weights[f"{side}_proj.2.weight"].T + weights[f"{side}_proj.2.bias"])

    published, inputs = sonar_texts()
    text = projected(sonar_reference(sonar_fairseq2(), published), "text")
    mels = [torch.from_numpy(expected[f"mel_db_{clip}"]).T for clip in range(3)]
    mask = nn.utils.rnn.pad_sequence([torch.ones(len(mel), dtype=torch.long) for mel in mels], True)
    audio = projected(
        torch.from_numpy(np.concatenate([expected[f"pooled_{clip}"][None] for clip in range(3)])), "audio"
    )
    output = model(**inputs, input_features=nn.utils.rnn.pad_sequence(mels, True), input_features_mask=mask)
    torch.testing.assert_close(output.audio_embeds, audio, atol=1e-4, rtol=0)
    torch.testing.assert_close(output.text_embeds, text, atol=1e-5, rtol=0)
    torch.testing.assert_close(output.logits_per_audio, audio @ text.T / 0.05, atol=1e-3, rtol=0)


@torch.no_grad()
def test_a_temperature_beyond_the_clamp_keeps_its_logits(tmp_path):
    torch.save(ml_clap(temperature=0.002), tmp_path / "pretrain.pt")
    model = load_ml_clap(tmp_path / "pretrain.pt")
    assert model.get_logit_scale().item() == pytest.approx(500, rel=1e-5)


def test_a_temperature_that_crossed_zero_is_refused(tmp_path):
    torch.save(ml_clap(temperature=-0.01), tmp_path / "pretrain.pt")
    with pytest.raises(ValueError, match="temperature"):
        load_ml_clap(tmp_path / "pretrain.pt")


@pytest.fixture(params=[False, True], ids=["unfused", "fused"])
def clap_folder(request, tmp_path):
    torch.manual_seed(3)
    clap = build_clap()
    clap.config.audio_config.enable_fusion = request.param
    clap = type(clap)(clap.config).eval()
    clap.logit_scale_a.data.fill_(3.1)
    for module in clap.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    clap.save_pretrained(tmp_path / "clap")
    extractor = clap_extractor()
    extractor.truncation = "fusion" if request.param else "rand_trunc"
    extractor.save_pretrained(tmp_path / "clap")
    return clap, extractor, tmp_path / "clap"


@torch.no_grad()
def test_laion_clap_gives_what_transformers_gives(clap_folder, tokenizer, tmp_path):
    clap, extractor, folder = clap_folder
    assert main(["convert", "laion-clap", str(folder), str(tmp_path / "out")]) == 0
    model = SupClapModel.from_pretrained(tmp_path / "out").eval()
    clips = [
        0.1 * np.random.default_rng(i).standard_normal(n).astype(np.float32) for i, n in enumerate((20000, 48000))
    ]
    inputs = extractor(clips, sampling_rate=48000, return_tensors="pt")
    inputs["is_longer"] = torch.zeros(2, 1, dtype=torch.bool)  # with fusion, the extractor picks one at random
    ids = torch.tensor([[0, 5, 6, 7, 2], [0, 8, 2, 1, 1]])
    mask = (ids != 1).long()
    expected = clap(input_ids=ids, attention_mask=mask, **inputs)
    from transformers import AutoFeatureExtractor

    features = AutoFeatureExtractor.from_pretrained(tmp_path / "out")(clips, sampling_rate=48000)
    output = model(input_ids=ids, attention_mask=mask, **features)
    torch.testing.assert_close(output.audio_embeds, expected.audio_embeds, atol=1e-5, rtol=0)
    torch.testing.assert_close(output.text_embeds, expected.text_embeds, atol=1e-5, rtol=0)
    torch.testing.assert_close(output.logits_per_audio, expected.logits_per_audio, atol=1e-4, rtol=0)


@torch.no_grad()
def test_a_converted_laion_clap_trains_all_its_parameters(clap_folder, tmp_path):
    _, extractor, folder = clap_folder
    model = load_laion_clap_checkpoint(folder).train()
    x = torch.randn(2, 101, 16)
    with torch.enable_grad():
        model(input_ids=torch.tensor([[0, 5, 2], [0, 8, 2]]), input_features=x, return_loss=True).loss.backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]


def break_missing(weights: dict, name: str) -> None:
    del weights[name]


def break_unexpected(weights: dict, name: str) -> None:
    weights[name + ".more"] = torch.zeros(2)


def break_shape(weights: dict, name: str) -> None:
    weights[name] = torch.zeros(3, 5)


LOADERS = {"ced": (ced_original, load_ced), "ced-hub": (ced_hub, load_ced), "sonar": (sonar_fairseq2, load_sonar)}
LOADERS["ml-clap"] = (ml_clap, load_ml_clap)
SONAR_IN_ML_CLAP = "text_encoder.model.encoder."


@pytest.mark.parametrize("break_weights", [break_missing, break_unexpected, break_shape])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ced", "init_bn.1.running_mean"),
        ("ced", "blocks.0.mlp.fc1.weight"),
        ("ced-hub", "encoder.blocks.1.attn.qkv.weight"),
        ("ced-hub", "encoder.init_bn.bias"),
        ("sonar", "encoder.layers.1.ffn.output_proj.weight"),
        ("sonar", "encoder.layers.0.self_attn_layer_norm.bias"),
        ("sonar", "encoder_frontend.embed.weight"),
        ("ml-clap", "text_proj.2.weight"),
        ("ml-clap", "audio_proj.2.bias"),
        ("ml-clap", "audio_encoder.model.init_bn.1.bias"),
        ("ml-clap", SONAR_IN_ML_CLAP + "layers.0.self_attn.output_proj.bias"),
    ],
)
def test_a_wrong_key_is_named_as_in_the_file(kind, name, break_weights, tmp_path):
    weights, load = LOADERS[kind]
    changed = weights()
    break_weights(changed, name)
    torch.save(changed, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=rf"(?<![\w.]){re.escape(name)}"):
        load(tmp_path / "weights.pt")


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("ced", "patch_embed.proj.weight", torch.zeros(96, 256)),
        ("ced", "init_bn.1.weight", torch.tensor(1.0)),
        ("ced", "init_bn.1.weight", torch.zeros(63)),
        ("ced", "time_pos_embed", torch.zeros(1, 96, 1, 31)),
        ("ced", "blocks.0.mlp.fc1.weight", torch.tensor(1.0)),
        ("ced", "blocks.x.y", torch.zeros(2)),
        ("sonar", "encoder_frontend.embed.weight", torch.zeros(50)),
        ("sonar", "encoder_frontend.embed.weight", torch.zeros(2, WIDTH)),
        ("sonar", "encoder.layers.0.ffn.inner_proj.weight", torch.tensor(1.0)),
        ("sonar", "encoder.layers.x.y", torch.zeros(2)),
        ("ml-clap", "audio_proj.0.weight", torch.tensor(1.0)),
        ("ml-clap", "temperature", torch.zeros(2)),
        ("ml-clap", "temperature", torch.tensor(math.inf)),
        ("ml-clap", "audio_model.norm.weight", torch.zeros(96)),
    ],
)
def test_a_weight_that_tells_no_size_is_named(kind, name, value, tmp_path):
    weights, load = LOADERS[kind]
    torch.save({**weights(), name: value}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=rf"(?<![\w.]){re.escape(name)}"):
        load(tmp_path / "weights.pt")


def test_one_weight_by_two_names_is_refused(tmp_path):
    torch.save({**ced_original(), "init_bn.weight": torch.zeros(64)}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"both init_bn.1.weight and init_bn.weight"):
        load_ced(tmp_path / "weights.pt")


def without_layer(weights: dict, layer: str) -> dict:
    return {name: value for name, value in weights.items() if f"{layer}." not in name}


@pytest.mark.parametrize(
    ("kind", "layer"),
    [
        *(("ced", f"blocks.{number}") for number in range(3)),
        ("ced-hub", "encoder.blocks.2"),
        *(("sonar", f"encoder.layers.{number}") for number in range(LAYERS)),
        ("ml-clap", "audio_encoder.model.blocks.2"),
        ("ml-clap", SONAR_IN_ML_CLAP + "layers.1"),
    ],
)
def test_a_checkpoint_without_a_whole_layer_is_refused(kind, layer, tmp_path):
    weights, load = LOADERS[kind]
    torch.save(without_layer(weights(), layer), tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=f"missing {layer}"):
        load(tmp_path / "weights.pt")


@pytest.mark.parametrize(
    ("kind", "load", "layer"),
    [
        ("ced", lambda path: load_ced_checkpoint(path, 3), "blocks.11"),
        ("sonar", lambda path: load_sonar_checkpoint(path, HEADS), "encoder.layers.23"),
        ("ml-clap", lambda path: load_ml_clap_checkpoint(path, 3, HEADS, text_layers=LAYERS), "blocks.11"),
        ("ml-clap", lambda path: load_ml_clap_checkpoint(path, 3, HEADS, audio_layers=3), "layers.23"),
    ],
)
def test_the_published_depth_is_expected_where_no_other_is_told(kind, load, layer, tmp_path):
    torch.save(LOADERS[kind][0](), tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=f"missing .*{layer}"):
        load(tmp_path / "weights.pt")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"depth": 4}, "missing encoder.blocks.3"),
        ({"depth": 2}, "unexpected encoder.blocks.2"),
        ({"embed_dim": 192}, "embed_dim 192"),
        ({"n_mels": 128}, "n_mels 128"),
        ({"target_length": 496}, "encoder.time_pos_embed has 63 columns"),
        ({"num_heads": 7}, "7 attention heads"),
        ({"depth": "3"}, "config.json: depth"),
    ],
)
def test_a_ced_that_is_not_what_its_configuration_says_is_refused(changes, named, tmp_path):
    save_file(ced_hub(), tmp_path / "model.safetensors")
    write_ced_config(tmp_path, **changes)
    with pytest.raises(ValueError, match=named):
        load_ced_checkpoint(tmp_path)


def test_a_width_without_published_heads_is_refused_and_says_where_to_give_them(tmp_path):
    save_file(ced_original(), tmp_path / "ced.safetensors")
    with pytest.raises(ValueError, match=r"96 is no multiple; the loaders of supclap\.conversion take"):
        load_ced_checkpoint(tmp_path / "ced.safetensors", num_hidden_layers=3)


@pytest.mark.parametrize("name", ["logit_scale_a", "logit_scale_t"])
@pytest.mark.parametrize("value", [torch.zeros(2), torch.tensor(math.inf)])
def test_a_scale_of_laion_clap_that_is_no_number_is_named(clap_folder, name, value):
    _, _, folder = clap_folder
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, name: value}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=name):
        load_laion_clap_checkpoint(folder)


@pytest.mark.parametrize("content", ["[", "[]", '{"weight_map": 3}', "{}"])
def test_a_broken_index_is_named(tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match=r"index\.json is no index of weights"):
        load_ced_checkpoint(tmp_path)


@pytest.mark.parametrize("break_weights", [break_missing, break_unexpected, break_shape])
def test_a_wrong_key_of_laion_clap_is_named(clap_folder, break_weights):
    _, _, folder = clap_folder
    weights = load_file(folder / "model.safetensors")
    break_weights(weights, "text_model.pooler.dense.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="text_model.pooler.dense"):
        load_laion_clap_checkpoint(folder)


@pytest.mark.parametrize("name", ["outputlayer.junk", "outputlayer.2.weight", "front_end.0.junk"])
@pytest.mark.parametrize(("kind", "prefix"), [("ced", ""), ("ced-hub", ""), ("ml-clap", "audio_encoder.model.")])
def test_an_unknown_weight_of_ceds_head_or_spectrogram_is_named(kind, prefix, name, tmp_path):
    weights, load = LOADERS[kind]
    torch.save({**weights(), prefix + name: torch.zeros(2)}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=f"unexpected {re.escape(prefix + name)}"):
        load(tmp_path / "weights.pt")


def test_the_spectrogram_of_a_ced_checkpoint_is_left_out(tmp_path):
    front_end = {"spectrogram.window": torch.ones(512), "mel_scale.fb": torch.ones(257, 64)}
    weights = {**ced_original(), **{f"front_end.0.{name}": value for name, value in front_end.items()}}
    torch.save(weights, tmp_path / "weights.pt")
    load_ced(tmp_path / "weights.pt")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ced", "init_bn.1.running_var"),
        ("ced-hub", "encoder.blocks.1.attn.qkv.weight"),
        ("sonar", "encoder_frontend.embed.weight"),
        ("ml-clap", "audio_proj.2.bias"),
        ("ml-clap", SONAR_IN_ML_CLAP + "layers.0.self_attn.output_proj.bias"),
    ],
)
def test_a_weight_that_is_not_finite_is_named(kind, name, value, tmp_path):
    weights, load = LOADERS[kind]
    changed = weights()
    changed[name].view(-1)[1] = value
    torch.save(changed, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=rf": {re.escape(name)} should be finite"):
        load(tmp_path / "weights.pt")


def test_a_weight_of_laion_clap_that_is_not_finite_is_named(clap_folder):
    _, _, folder = clap_folder
    weights = load_file(folder / "model.safetensors")
    weights["audio_model.audio_encoder.norm.bias"][1] = math.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r": audio_model\.audio_encoder\.norm\.bias should be finite"):
        load_laion_clap_checkpoint(folder)


def test_a_weight_beyond_the_range_of_the_model_is_named(tmp_path):
    weights = {**ced_original(), "norm.bias": torch.full((96,), 1e300, dtype=torch.float64)}
    torch.save(weights, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"norm\.bias should be finite"):
        load_ced(tmp_path / "weights.pt")


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_an_empty_file_is_an_error_that_names_it(tmp_path, capsys, name):
    (tmp_path / name).touch()
    assert main(["convert", "ced", str(tmp_path / name), str(tmp_path / "out")]) == 1
    assert f"{name}' cannot be read as weights: " in capsys.readouterr().err


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("evil"),))


def test_a_pickle_with_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Evil()}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"weights\.pt"):
        load_sonar_checkpoint(tmp_path / "weights.pt")
    assert not (tmp_path / "evil").exists()


def test_the_refusal_of_a_pickle_does_not_advise_to_open_it_all_the_same(tmp_path):
    torch.save({"model": Evil()}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="of tensors alone") as refusal:
        load_sonar_checkpoint(tmp_path / "weights.pt")
    assert "weights_only" not in str(refusal.value)


def test_an_index_that_leaves_its_folder_is_refused(tmp_path):
    index = {"weight_map": {"a": "../other/model.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="model.safetensors.index.json names .*outside its folder"):
        load_ced_checkpoint(tmp_path)


@torch.no_grad()
def test_the_command_writes_a_folder_that_the_auto_classes_open(tmp_path, capsys):
    out, source = tmp_path / "out", tmp_path / "source"
    source.mkdir()
    save_file(ced_hub(), source / "model.safetensors")
    write_ced_config(source)
    command = ["convert", "ced", str(source), str(out)]
    assert main(command) == 0
    assert type(AutoModel.from_pretrained(out)).__name__ == "CedModel"
    assert main(command) == 1  # the folder exists now
    assert "exists" in capsys.readouterr().err


@torch.no_grad()
def test_the_command_writes_the_tokenizer_it_is_given(clap_folder, tokenizer, tmp_path):
    _, _, folder = clap_folder
    tokenizer.save_pretrained(tmp_path / "words")
    assert (
        main(["convert", "laion-clap", str(folder), str(tmp_path / "out"), "--tokenizer", str(tmp_path / "words")])
        == 0
    )
    processor = AutoProcessor.from_pretrained(tmp_path / "out")
    inputs = processor(text=["a dog"], audio=[np.zeros(9000, np.float32)], sampling_rate=48000)
    assert inputs["input_features"].shape == (1, 101, 16)
    assert inputs["input_ids"].shape[0] == 1


def state_license(folder: Path, license: str) -> None:
    (folder / "README.md").write_text(f"---\nlicense: {license}\n---\n# Published\n")


@pytest.fixture
def ced_folder(tmp_path):
    folder = tmp_path / "ced"
    folder.mkdir()
    save_file(ced_hub(), folder / "model.safetensors")
    write_ced_config(folder)
    return folder


@pytest.fixture
def converted_clap(clap_folder, tokenizer, tmp_path):
    """A non-commercial ClapModel, converted."""
    _, _, folder = clap_folder
    tokenizer.save_pretrained(folder)
    state_license(folder, "cc-by-nc-4.0")
    convert("laion-clap", folder, tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize(
    "license", ["cc-by-nc-4.0", "apache-2.0", "other\nlicense_name: my-research-only-terms", "[mit, gpl-3.0]"]
)
def test_the_licence_that_a_source_states_is_that_of_the_converted_folder(ced_folder, license, tmp_path):
    state_license(ced_folder, license)
    convert("ced", ced_folder, tmp_path / "out")
    assert license_of_model(str(tmp_path / "out")) == license_of_model(str(ced_folder)) != "unknown"


def test_a_source_that_states_no_licence_gives_a_folder_without_a_readme(ced_folder, tmp_path):
    convert("ced", ced_folder, tmp_path / "out")
    assert not (tmp_path / "out" / "README.md").exists()


@pytest.mark.parametrize("stated", [None, "apache-2.0"])
@pytest.mark.parametrize("kind", ["sonar", "ml-clap"])
def test_what_contains_sonar_is_non_commercial_whatever_its_source_states(kind, stated, tmp_path, monkeypatch):
    source, weights, load = tmp_path / "source", *LOADERS[kind]
    source.mkdir()
    save_file(weights(), source / "model.safetensors")
    if stated:
        state_license(source, stated)
    monkeypatch.setitem(KINDS, kind, load)
    convert(kind, source, tmp_path / "out")
    assert license_of_model(str(tmp_path / "out")) == "cc-by-nc-4.0"


def test_a_model_of_a_converted_tower_keeps_its_licence_when_the_folder_is_gone(ced_folder, tmp_path):
    state_license(ced_folder, "cc-by-nc-4.0")
    convert("ced", ced_folder, tmp_path / "out")
    config = {"audio_config": AutoModel.from_pretrained(tmp_path / "out").config.to_dict(), "text_config": {}}
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    assert part_licenses({}, config)["audio_encoder"] == "cc-by-nc-4.0"


def test_a_card_takes_the_place_of_a_conversions_readme_and_keeps_to_its_licence(converted_clap):
    write_card(converted_clap)
    assert license_of_model(str(converted_clap)) == "cc-by-nc-4.0"
    with pytest.raises(LicenseError, match="The published checkpoint that was converted is cc-by-nc-4.0"):
        build_card(converted_clap, "me/x", "apache-2.0")


def test_a_converted_model_that_is_saved_again_refuses_what_its_source_forbids(converted_clap, tmp_path):
    SupClapModel.from_pretrained(converted_clap).save_pretrained(tmp_path / "again")
    AutoProcessor.from_pretrained(converted_clap).save_pretrained(tmp_path / "again")
    with pytest.raises(LicenseError, match="no commercial use"):
        build_card(tmp_path / "again", "me/x", "apache-2.0")
