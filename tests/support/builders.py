"""Builders that several test files use: sounds and files, model inputs, tiny random models, trainers and recipes."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import soundfile
import torch
import torch.nn.functional as F
import yaml
from transformers import (
    ASTConfig,
    ASTFeatureExtractor,
    AutoConfig,
    BertConfig,
    ClapFeatureExtractor,
    ClapModel,
    CLIPConfig,
    CLIPModel,
    DebertaV2Config,
    DistilBertConfig,
    HubertConfig,
    M2M100Config,
    ModernBertConfig,
    MPNetConfig,
    RobertaConfig,
    T5Config,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    WavLMConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    XLMRobertaConfig,
)

from supclap import CedConfig, SupClapConfig, SupClapEncoderFeatureExtractor, SupClapModel, SupClapProcessor


RATE = 16000


# --- sounds and files -----------------------------------------------------------------------------------------------


def tone(hertz: float = 440.0, seconds: float = 0.2, rate: int = RATE, level: float = 0.3) -> np.ndarray:
    """A sine wave; `level` is its amplitude."""
    return (level * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def noise_bytes(seed: int) -> bytes:
    """Half a second of noise as the bytes of a WAV file."""
    file = io.BytesIO()
    soundfile.write(file, 0.1 * np.random.default_rng(seed).standard_normal(8000), RATE, format="WAV")
    return file.getvalue()


def write_sounds(folder: Path, *names: str) -> None:
    """Audio files of a tenth of a second that hold a constant."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / name, np.full(1600, 0.1), RATE)


def add_to_tar(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Adds a file with this content."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def set_text_architecture(folder: Path, model_type: str) -> None:
    """Has the config of a saved checkpoint name another text encoder."""
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["model_type"] = model_type
    (folder / "config.json").write_text(json.dumps(config))


# --- inputs of models and losses ------------------------------------------------------------------------------------


def unit(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Random vectors of unit length along the last dimension."""
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(*shape, generator=generator, dtype=dtype), dim=-1)


def texts(lengths: list[int]) -> dict[str, torch.Tensor]:
    """Random token ids below 100, padded with 1, and their mask."""
    torch.manual_seed(1)
    ids = torch.randint(5, 100, (len(lengths), max(lengths)))
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": torch.where(mask.bool(), ids, 1), "attention_mask": mask}


def spectrograms(lengths: list[int]) -> dict[str, torch.Tensor]:
    """Random spectrograms of as many frames, padded with 0, and their mask."""
    torch.manual_seed(2)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return {
        "input_features": torch.randn(len(lengths), max(lengths), 64) * mask[..., None],
        "input_features_mask": mask,
    }


def pair_samples(kind: str, count: int = 8) -> list[dict[str, torch.Tensor]]:
    """Random inputs of pairs for a ClapModel (`kind` "clap") or a CLIPModel ("clip"), one dictionary a pair."""
    generator = torch.Generator().manual_seed(1)
    if kind == "clap":
        other = {"input_features": torch.randn(count, 1, 16, 8, generator=generator)}
    else:
        other = {"pixel_values": torch.randn(count, 3, 16, 16, generator=generator)}
    tokens = torch.randint(5, 40, (count, 6), generator=generator)
    tokens[:, -1] = 3
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), **other}
    return [{name: value[i] for name, value in batch.items()} for i in range(count)]


# --- SupCLAP models with our audio encoder --------------------------------------------------------------------------


def build_tiny_config(tokenizer) -> SupClapConfig:
    """The config of a tiny model for the vocabulary of a tokenizer."""
    text = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    audio = CedConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=3)
    return SupClapConfig(text_config=text, audio_config=audio, projection_dim=32)


def build_tiny_model(config: SupClapConfig) -> SupClapModel:
    """A random model in evaluation mode, with input statistics."""
    torch.manual_seed(0)
    model = SupClapModel(config)
    model.audio_model.set_input_statistics(torch.full((64,), -40.0), torch.full((64,), 400.0))
    return model.eval()


TEXT_SIZES = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
}
TEXT_CONFIGS = {
    "bert": BertConfig(**TEXT_SIZES),
    "roberta": RobertaConfig(**{**TEXT_SIZES, "max_position_embeddings": 42}, pad_token_id=1),
    "xlm-roberta": XLMRobertaConfig(**{**TEXT_SIZES, "max_position_embeddings": 42}, pad_token_id=1),
    "m2m_100": M2M100Config(
        vocab_size=100,
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=64,
        max_position_embeddings=40,
        encoder_layerdrop=0.0,
    ),
    "mpnet": MPNetConfig(**{**TEXT_SIZES, "max_position_embeddings": 42}, pad_token_id=1),
    "distilbert": DistilBertConfig(
        vocab_size=100, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=40
    ),
    "deberta-v2": DebertaV2Config(**TEXT_SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "modernbert": ModernBertConfig(
        **TEXT_SIZES, pad_token_id=1, bos_token_id=0, cls_token_id=0, eos_token_id=2, sep_token_id=2
    ),
    "t5": T5Config(vocab_size=100, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2),
}


def small_model(text: str = "bert") -> SupClapModel:
    """A random model with one of `TEXT_CONFIGS` and windows of 160 frames, in evaluation mode."""
    torch.manual_seed(0)
    audio = CedConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=3, target_length=160)
    return SupClapModel(SupClapConfig(text_config=TEXT_CONFIGS[text], audio_config=audio, projection_dim=16)).eval()


# --- SupCLAP models with audio encoders of Transformers -------------------------------------------------------------


ENCODER_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
WAVE_SIZES = {
    **ENCODER_SIZES,
    "conv_dim": (16, 16, 16),
    "conv_kernel": (10, 8, 4),
    "conv_stride": (10, 8, 4),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.5,
    "layerdrop": 0.5,
}
HTSAT_SIZES = {
    "spec_size": 64,
    "num_mel_bins": 16,
    "window_size": 4,
    "patch_embeds_hidden_size": 8,
    "depths": [1, 2],
    "num_attention_heads": [2, 2],
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "enable_fusion": True,
    "fusion_type": "aff_2d",
}


def clap_extractor() -> ClapFeatureExtractor:
    """The feature extractor for `HTSAT_SIZES` and windows of one second."""
    return ClapFeatureExtractor(feature_size=16, max_length_s=1)


# name: (config, the encoder's own feature extractor, features of a window if they are not the encoder's)
ENCODERS = {
    "ast": (
        lambda: ASTConfig(**ENCODER_SIZES, max_length=100, num_mel_bins=32),
        lambda: ASTFeatureExtractor(num_mel_bins=32, max_length=100),
        None,
    ),
    "htsat": (lambda: AutoConfig.for_model("clap_audio_model", **HTSAT_SIZES), clap_extractor, 101),
    "whisper": (
        lambda: WhisperConfig(
            d_model=32, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=64, max_source_positions=50,
            num_mel_bins=20, encoder_layerdrop=0.5, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=32,
            vocab_size=60, pad_token_id=0,
        ),
        lambda: WhisperFeatureExtractor(feature_size=20, chunk_length=1),
        None,
    ),
    "wav2vec2": (lambda: Wav2Vec2Config(**WAVE_SIZES), Wav2Vec2FeatureExtractor, 16000),
    "wav2vec2-layer-norm": (
        lambda: Wav2Vec2Config(**WAVE_SIZES, feat_extract_norm="layer", do_stable_layer_norm=True),
        Wav2Vec2FeatureExtractor,
        16000,
    ),
    "hubert": (lambda: HubertConfig(**WAVE_SIZES), Wav2Vec2FeatureExtractor, 16000),
    "wavlm": (lambda: WavLMConfig(**WAVE_SIZES), Wav2Vec2FeatureExtractor, 16000),
}  # fmt: skip


def build_with_encoder(name: str, tokenizer) -> tuple[SupClapModel, SupClapProcessor]:
    """A random model with one of `ENCODERS` in evaluation mode, and its processor."""
    torch.manual_seed(0)
    config, extractor, window = ENCODERS[name]
    text = BertConfig(vocab_size=len(tokenizer), **ENCODER_SIZES, max_position_embeddings=32)
    model = SupClapModel(
        SupClapConfig(text_config=text, audio_config=config(), audio_window=window, projection_dim=16)
    )
    return model.eval(), SupClapProcessor(SupClapEncoderFeatureExtractor(extractor()), tokenizer)


# --- other dual encoders --------------------------------------------------------------------------------------------


def build_clap() -> ClapModel:
    """A random ClapModel with `HTSAT_SIZES`."""
    text = {**ENCODER_SIZES, "vocab_size": 60, "max_position_embeddings": 34, "num_hidden_layers": 1}
    return ClapModel(AutoConfig.for_model("clap", text_config=text, audio_config=HTSAT_SIZES, projection_dim=16))


def build_clip() -> CLIPModel:
    """A random CLIPModel for the pairs of `pair_samples`."""
    torch.manual_seed(0)
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    vision |= {"image_size": 16, "patch_size": 8}
    text = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text |= {"intermediate_size": 16, "max_position_embeddings": 20, "eos_token_id": 3}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=12))


# --- training runs --------------------------------------------------------------------------------------------------


def build_clip_trainer(folder: Path, data: list[dict] | None = None, **options):
    """A trainer of a CLIPModel on 8 pairs in batches of 4, for 4 steps."""
    from supclap import SupClapTrainer, SupClapTrainingArguments  # needs the extra `train`

    defaults = {"per_device_train_batch_size": 4, "max_steps": 4, "learning_rate": 1e-2, "logging_steps": 1}
    defaults |= {"save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "seed": 0}
    args = SupClapTrainingArguments(str(folder), **defaults | options)
    torch.manual_seed(0)
    data = pair_samples("clip") if data is None else data
    return SupClapTrainer(build_clip(), args, data_collator=torch.utils.data.default_collate, train_dataset=data)


def write_recipe(folder: Path, tones: Path, text_encoder: Path, **training) -> Path:
    """A recipe that trains a tiny model on the tones in a few seconds."""
    content = {
        "model": {
            "text_model": str(text_encoder),
            "audio_model": "random:ced-tiny",
            "audio_config": {
                "hidden_size": 32,
                "num_attention_heads": 2,
                "num_hidden_layers": 1,
                "hidden_dropout": 0.1,
            },
            "projection_dim": 16,
        },
        "data": {
            "data_dir": str(tones),
            **{f"{split}_file": "metadata.csv" for split in ("train", "validation", "test")},
            "split_column": "split",
            **{f"{split}_splits": [split] for split in ("train", "validation", "test")},
            "caption_columns": ["caption", "other"],
            "max_duration": 0.6,
            "label_column": "label",
            "waveform_augment": {"speeds": [97, 100, 103]},
            "spectrogram_augment": {"frequency_masks": 1, "response_db": 3},
            "input_statistics_batches": 2,
        },
        "training": {
            "output_dir": str(folder / "run"),
            "seed": 3,
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 4,
            "max_steps": 12,
            "learning_rate": 3e-3,
            "radius_learning_rate": 1e-3,
            "eval_strategy": "steps",
            "eval_steps": 4,
            "save_steps": 4,
            "logging_steps": 1,
            "use_cpu": True,
            "zero_shot_templates": ["a {} tone"],
            **training,
        },
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path
