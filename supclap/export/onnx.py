"""`supclap export`: both towers as ONNX graphs, waveform or tokens in, embeddings out, checked against torch."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from modeling_supclap import SupClapModel
from processing_supclap import SupClapFeatureExtractor, SupClapProcessor, load_waveform
from processing_supclap.audio_supclap import as_clips
from processing_supclap.text_supclap import UNKNOWN_LIMIT, check_texts
from supclap.files import replacing


if TYPE_CHECKING:
    import onnx

AUDIO_GRAPH, TEXT_GRAPH, DESCRIPTION = "audio.onnx", "text.onnx", "export.json"
# Largest difference of an entry of a unit-length embedding from torch's.
TOLERANCE = 1e-4
INT8_BLOCK = 32


class AudioGraph(nn.Module):
    """Waveforms to embeddings: the feature extractor, the windows and the audio tower in one traceable module.

    Args:
        model: A model with a CED audio encoder whose windows do not overlap.
        extractor: Its feature extractor.
    """

    def __init__(self, model: SupClapModel, extractor: SupClapFeatureExtractor):
        super().__init__()
        self.encoder = model.audio_model
        self.projection = model.audio_projection
        self.n_fft, self.hop_length, self.top_db = extractor.n_fft, extractor.hop_length, extractor.top_db
        self.register_buffer("window", torch.from_numpy(extractor.window))
        self.register_buffer("mel_filters", torch.from_numpy(extractor.mel_filters))

    def forward(self, waveform: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """
        Args:
            waveform: Mono clips at the extractor's rate, padded at the end with anything, float32 `(batch, samples)`.
            lengths: Samples of each clip, int64 `(batch,)`.

        Returns:
            L2-normalised embeddings `(batch, projection_dim)`.
        """
        decibels, real_frames = self.log_mel(waveform, lengths)
        frames = decibels.shape[1]
        window, patch = self.encoder.config.target_length, self.encoder.config.patch_size
        size = torch.sym_max(torch.sym_min(frames, window), patch)
        count = 1 + (torch.sym_max(frames - window, 0) + window - 1) // window
        decibels = nn.functional.pad(decibels, (0, 0, 0, count * size - frames)).unflatten(1, (count, size))
        starts = torch.arange(count) * window
        real = (real_frames[:, None] - starts).clamp(0, window)
        mask = torch.arange(size) < real[..., None]
        normalised = self.encoder.init_bn(decibels.flatten(0, 1).transpose(1, 2)) * mask.flatten(0, 1)[:, None]
        tokens, token_mask = self.encoder._encode_window(normalised, real.flatten())
        used = (real >= patch) | (starts == 0)
        weights = (token_mask & used.flatten()[:, None])[..., None].to(tokens.dtype)
        total = (tokens * weights).sum(1).unflatten(0, (-1, count)).sum(1)
        pooled = total / weights.sum(1).unflatten(0, (-1, count)).sum(1)
        return nn.functional.normalize(self.projection(pooled), dim=-1)

    def log_mel(self, waveform: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """dB `(batch, time, mel bands)` as `SupClapFeatureExtractor` gives clip by clip, and frames of each clip."""
        margin = self.n_fft // 2
        frames = 1 + waveform.shape[1] // self.hop_length
        positions = torch.arange(frames)[:, None] * self.hop_length + torch.arange(self.n_fft) - margin
        positions = positions.flatten().abs()[None]  # reflected at the start,
        last = lengths.clamp(min=margin + 1)[:, None] - 1
        positions = torch.where(positions > last, 2 * last - positions, positions)  # and at the end of each clip
        inside = (positions >= 0) & (positions < lengths[:, None])
        samples = waveform.gather(1, positions.clamp(min=0).minimum(lengths[:, None] - 1)) * inside
        # in float64: the float32 transform of onnxruntime has errors above the floor of top_db beside a pure tone
        framed = samples.unflatten(1, (frames, self.n_fft)).double() * self.window.double()
        spectrum = torch.view_as_real(torch.fft.rfft(framed))
        power = (spectrum[..., 0].square() + spectrum[..., 1].square()).float()
        decibels = 10 * (power @ self.mel_filters).clamp(min=1e-10).log10()
        real_frames = 1 + lengths // self.hop_length
        mask = (torch.arange(frames) < real_frames[:, None])[..., None]
        loudest = decibels.masked_fill(~mask, -torch.inf).amax((1, 2), keepdim=True)
        return decibels.maximum(loudest - self.top_db) * mask, real_frames


class TextGraph(nn.Module):
    """Tokens to embeddings."""

    def __init__(self, model: SupClapModel):
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model.get_text_features(input_ids, attention_mask).pooler_output


class OnnxSupClap:
    """Embeds clips and texts with an exported folder, by onnxruntime.

    Args:
        folder: What [`export_onnx`] wrote.
        providers: Execution providers of onnxruntime.
    """

    def __init__(self, folder: str | Path, providers: tuple[str, ...] = ("CPUExecutionProvider",)):
        import onnxruntime
        from transformers import AutoTokenizer

        folder = Path(folder)
        self.description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.audio, self.text = (
            onnxruntime.InferenceSession(folder / name, providers=list(providers))
            for name in (AUDIO_GRAPH, TEXT_GRAPH)
        )

    def embed_audio(self, clips: Any, sampling_rate: int | None = None) -> np.ndarray:
        """`(n, projection_dim)` of a clip, or a list of clips, in any form that [`load_waveform`] takes."""
        rate, shortest = self.description["sampling_rate"], self.description["hop_length"]
        waveforms = [
            load_waveform(clip, sampling_rate, rate, f"audio[{i}]", shortest).numpy()
            for i, clip in enumerate(as_clips(clips))
        ]
        lengths = np.array([len(waveform) for waveform in waveforms])
        padded = np.stack([np.pad(waveform, (0, lengths.max() - len(waveform))) for waveform in waveforms])
        return self.audio.run(None, {"waveform": padded, "lengths": lengths})[0]

    def embed_texts(self, texts: str | list[str]) -> np.ndarray:
        """`(n, projection_dim)` of a text or a list of texts, cut at what tokenizer and encoder take."""
        limit = self.description["max_text_length"]
        tokens = self.tokenizer(
            check_texts(texts, "text"),
            padding=True,
            truncation=limit is not None,
            max_length=limit,
            padding_side="right",
            return_tensors="np",
        )
        inputs = {name: tokens[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
        return self.text.run(None, inputs)[0]


@torch.no_grad()
def export_onnx(checkpoint: str | Path, out: str | Path, int8: bool = False) -> dict[str, float]:
    """Exports both towers with dynamic batch and length, and compares onnxruntime's embeddings with torch's.

    Args:
        checkpoint: Folder or Hub id of a model with a CED audio encoder, with its processor.
        out: Folder to write: two graphs, the tokenizer and `export.json`.
        int8: Store the weights of matrix products in 8 bits, in blocks with a scale of their own; activations and
            everything else stay in float32.

    Returns:
        The largest difference of `audio` and `text` embeddings from torch's.

    Raises:
        FileExistsError: `out` exists and is not an empty folder.
        ValueError: The audio encoder or its feature extractor cannot be put into a graph, or an exported float32 graph
            differs by more than `TOLERANCE` from torch.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} exists already; choose another folder or remove it.")
    model = SupClapModel.from_pretrained(checkpoint, dtype=torch.float32).eval()
    processor = SupClapProcessor.from_pretrained(checkpoint)
    config, extractor = model.config, processor.feature_extractor
    if config.audio_config.model_type != "supclap_ced" or type(extractor) is not SupClapFeatureExtractor:
        raise ValueError(f"Only CED audio encoders can be exported, not {config.audio_config.model_type!r}.")
    if config.audio_config.window_hop != config.audio_config.target_length:
        raise ValueError("Overlapping windows (window_hop < target_length) cannot be exported.")

    with replacing(out) as part:
        part.mkdir()
        dynamic = torch.export.Dim.DYNAMIC
        rate = extractor.sampling_rate
        clips = torch.randn(2, rate, generator=torch.Generator().manual_seed(0)) / 10
        _export(
            AudioGraph(model, extractor).eval(),
            {"waveform": clips, "lengths": torch.tensor([rate, rate // 2])},
            {"waveform": {0: dynamic, 1: dynamic}, "lengths": {0: dynamic}},
            "audio_embeds",
            part / AUDIO_GRAPH,
            int8,
        )
        tokens = processor(text=["a dog barks", "rain"])
        tokens = {name: tokens[name] for name in ("input_ids", "attention_mask")}
        shape = {0: dynamic, 1: dynamic}
        _export(TextGraph(model).eval(), tokens, dict.fromkeys(tokens, shape), "text_embeds", part / TEXT_GRAPH, int8)
        processor.tokenizer.save_pretrained(part)
        description = {
            "sampling_rate": rate,
            "hop_length": extractor.hop_length,
            "max_text_length": _text_limit(model, processor),
            "logit_scale": model.get_logit_scale().item(),
            "logit_bias": None if model.logit_bias is None else model.logit_bias.item(),
            "weights": "int8" if int8 else "float32",
        }
        (part / DESCRIPTION).write_text(json.dumps(description, indent=1), encoding="utf-8")
        differences = _compare(model, processor, part)
        wrong = {name: value for name, value in differences.items() if not value <= TOLERANCE}
        if wrong and not int8:
            raise ValueError(f"The exported graphs differ from torch: {wrong}; at most {TOLERANCE} is right.")
    return differences


def _export(
    graph: nn.Module, inputs: dict[str, torch.Tensor], shapes: dict[str, dict], output: str, path: Path, int8: bool
) -> None:
    program = torch.onnx.export(
        graph,
        kwargs=inputs,
        dynamo=True,
        dynamic_shapes=shapes,
        input_names=list(inputs),
        output_names=[output],
        verbose=False,
    )
    import onnx

    onnx.save(quantize(program.model_proto) if int8 else program.model_proto, path)


def quantize(graph: "onnx.ModelProto") -> "onnx.ModelProto":
    """The graph with the weights of its matrix products in 8 bits; the mel filters stay as they are."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    mel = [node.name for node in graph.graph.node if any("mel_filters" in name for name in node.input)]
    quantizer = MatMulNBitsQuantizer(graph, bits=8, block_size=INT8_BLOCK, is_symmetric=True, nodes_to_exclude=mel)
    quantizer.process()
    return quantizer.model.model


LONGEST_CHECK = 2048
"""Tokens; the attention to a longer text takes gigabytes."""


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings in the log."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)


def _text_limit(model: SupClapModel, processor: SupClapProcessor) -> int | None:
    """Where a text is cut: at the limit of the tokenizer or the encoder, whichever is lower; `None` without one."""
    limits = (processor.tokenizer.model_max_length, model.get_text_limit())
    return min((limit for limit in limits if limit is not None and limit < UNKNOWN_LIMIT), default=None)


def _compare(model: SupClapModel, processor: SupClapProcessor, folder: Path) -> dict[str, float]:
    """Largest difference between onnxruntime and torch on noise of three lengths, and texts of two and past the limit."""
    session = OnnxSupClap(folder)
    rate = processor.feature_extractor.sampling_rate
    generator = torch.Generator().manual_seed(1)
    clips = [torch.randn(n, generator=generator).numpy() / 10 for n in (rate // 4, 3 * rate, 12 * rate)]
    texts = ["rain", "a dog barks while a car passes by in the distance"]
    audio = model.get_audio_features(**processor(audio=clips, sampling_rate=rate)).pooler_output
    batches = [texts]
    limit = session.description["max_text_length"]
    if limit and limit <= LONGEST_CHECK:
        batches.append(["rain " * (limit + 1)])  # alone, since the memory of a batch grows with its longest text
    with _quiet():  # the cut is meant
        text = [
            np.abs(session.embed_texts(batch) - model.get_text_features(**processor(text=batch)).pooler_output.numpy())
            for batch in batches
        ]
    return {
        "audio": float(np.abs(session.embed_audio(clips, rate) - audio.numpy()).max()),
        "text": float(max(difference.max() for difference in text)),
    }
