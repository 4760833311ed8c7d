"""`supclap export` writes both towers as ONNX graphs, from waveforms or tokens to embeddings, and checks them against torch.

[`OnnxSupClap`] runs the graphs in onnxruntime.
"""

import copy
import logging
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from modeling_supclap import SupClapModel
from modeling_supclap.windows_supclap import masked_mean
from processing_supclap import SupClapFeatureExtractor, SupClapProcessor
from processing_supclap.audio_supclap import load_waveforms
from processing_supclap.text_supclap import encode_text, known_limit
from supclap.errors import ExportError
from supclap.files import check_is_new, read_json_object, replacing, write_json


if TYPE_CHECKING:
    import onnx

AUDIO_GRAPH, TEXT_GRAPH, DESCRIPTION = "audio.onnx", "text.onnx", "export.json"
# The largest difference from torch that an entry of an embedding, which has unit length, may have. Both sides compute the
# encoder in float32, which rounds far below this. Their spectrograms differ by less than 1e-4 dB, see `exact_features`.
TOLERANCE = 1e-4
# So many 8-bit weights share a scale.
INT8_BLOCK = 32
# In tokens. A longer text is not compared, because its attention would take gigabytes.
LONGEST_CHECK = 2048


class AudioGraph(nn.Module):
    """Turns waveforms into embeddings: the feature extractor, the windows and the audio tower in one module to trace.

    It does for a whole padded batch what `SupClapFeatureExtractor` does clip by clip and `CedModel` does window by window.
    Neither can be traced itself. The extractor works on each clip alone, so that its shapes depend on the lengths; and the
    encoder chooses its way by the length of the batch and by how many windows hold sound, while a graph has one way for
    all. A change there needs the same change here; the export compares both and refuses graphs that differ.

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
            L2-normalized embeddings `(batch, projection_dim)`.
        """
        decibels, real_frames = self.log_mel(waveform, lengths)
        frames = decibels.shape[1]
        window, patch = self.encoder.config.target_length, self.encoder.config.patch_size
        # A batch of short clips has one window of its own length, but of one patch at least; a longer one has whole windows.
        size = torch.sym_max(torch.sym_min(frames, window), patch)
        count = 1 + (torch.sym_max(frames - window, 0) + window - 1) // window
        decibels = nn.functional.pad(decibels, (0, 0, 0, count * size - frames)).unflatten(1, (count, size))
        starts = torch.arange(count) * window
        real = (real_frames[:, None] - starts).clamp(0, window)  # (batch, windows)
        mask = torch.arange(size) < real[..., None]
        normalized = self.encoder.init_bn(decibels.flatten(0, 1).transpose(1, 2)) * mask.flatten(0, 1)[:, None]
        # All windows are encoded, also those without sound, which then do not count.
        tokens, token_mask = self.encoder._encode_window(normalized, real.flatten())
        used = (real >= patch) | (starts == 0)
        token_mask = token_mask & used.flatten()[:, None]
        pooled = masked_mean(*(values.unflatten(0, (-1, count)).flatten(1, 2) for values in (tokens, token_mask)))
        return nn.functional.normalize(self.projection(pooled), dim=-1)

    def log_mel(self, waveform: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes what `SupClapFeatureExtractor.compute` does, for clips `(batch, samples)` of different lengths `(batch,)`.

        Returns dB `(batch, time, mel bands)`, zero behind the end of a clip, and the frames of each clip `(batch,)`.
        """
        # Each sample of each frame is looked up by its position, so that a clip can be reflected at its own end.
        margin = self.n_fft // 2
        frames = 1 + waveform.shape[1] // self.hop_length
        positions = torch.arange(frames)[:, None] * self.hop_length + torch.arange(self.n_fft) - margin
        positions = positions.flatten().abs()[None]  # reflection at the start
        last = lengths.clamp(min=margin + 1)[:, None] - 1
        positions = positions.where(positions <= last, 2 * last - positions)  # reflection at the end of each clip
        # A clip that is too short to be reflected is longer by zeros, as in the feature extractor.
        inside = (positions >= 0) & (positions < lengths[:, None])
        samples = waveform.gather(1, positions.clamp(min=0).minimum(lengths[:, None] - 1)) * inside
        # The transform is computed in float64: beside a pure tone, the errors of onnxruntime's float32 transform would lie
        # above the floor of top_db.
        framed = samples.unflatten(1, (frames, self.n_fft)).double() * self.window.double()
        spectrum = torch.view_as_real(torch.fft.rfft(framed))
        power = (spectrum[..., 0].square() + spectrum[..., 1].square()).float()
        decibels = 10 * (power @ self.mel_filters).clamp(min=1e-10).log10()
        real_frames = 1 + lengths // self.hop_length
        mask = (torch.arange(frames) < real_frames[:, None])[..., None]
        loudest = decibels.masked_fill(~mask, -torch.inf).amax((1, 2), keepdim=True)
        return decibels.maximum(loudest - self.top_db) * mask, real_frames


class TextGraph(nn.Module):
    """Turns tokens into embeddings."""

    def __init__(self, model: SupClapModel):
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model.get_text_features(input_ids, attention_mask).pooler_output


class OnnxSupClap:
    """Embeds clips and texts with exported graphs, by onnxruntime.

    Args:
        folder: What [`export_onnx`] wrote.
        providers: Execution providers of onnxruntime.

    Example:

    ```python
    >>> from supclap.export.onnx import OnnxSupClap

    >>> session = OnnxSupClap("exported")
    >>> session.embed_audio(["clip.wav"]) @ session.embed_texts(["a cymbal crash", "a guitar"]).T  # cosines, (1, 2)
    ```
    """

    def __init__(self, folder: str | Path, providers: tuple[str, ...] = ("CPUExecutionProvider",)):
        import onnxruntime
        from transformers import AutoTokenizer

        folder = Path(folder)
        self.description = read_json_object(folder / DESCRIPTION)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.audio, self.text = (
            onnxruntime.InferenceSession(folder / name, providers=list(providers))
            for name in (AUDIO_GRAPH, TEXT_GRAPH)
        )

    def embed_audio(self, clips: Any, sampling_rate: int | None = None) -> np.ndarray:
        """Embeds a clip, or a list of clips, in any form that [`load_waveform`] takes: unit vectors `(n, projection_dim)`.

        Args:
            clips: The clips.
            sampling_rate: Rate in Hz of bare arrays.
        """
        rate, shortest = self.description["sampling_rate"], self.description["hop_length"]
        waveforms = load_waveforms(clips, sampling_rate, rate, shortest)
        lengths = np.array([len(waveform) for waveform in waveforms])
        padded = nn.utils.rnn.pad_sequence(waveforms, batch_first=True).numpy()
        return self.audio.run(None, {"waveform": padded, "lengths": lengths})[0]

    def embed_texts(self, texts: str | list[str]) -> np.ndarray:
        """Embeds a text, or a list of texts, cut where tokenizer or encoder cut them: unit vectors `(n, projection_dim)`."""
        tokens = encode_text(
            self.tokenizer, texts, max_length=self.description["max_text_length"], return_tensors="np"
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
        The largest difference from torch of the `audio` and of the `text` embeddings.

    Raises:
        FileExistsError: `out` exists and is not an empty folder.
        ExportError: The audio encoder or its feature extractor cannot be put into a graph, or an exported float32 graph
            differs by more than `TOLERANCE` from torch.
    """
    check_is_new(out)
    model = SupClapModel.from_pretrained(checkpoint, dtype=torch.float32).eval()
    processor = SupClapProcessor.from_pretrained(checkpoint)
    config, extractor = model.config, processor.feature_extractor
    if config.audio_config.model_type != "supclap_ced" or type(extractor) is not SupClapFeatureExtractor:
        raise ExportError(f"Only CED audio encoders can be exported, not {config.audio_config.model_type!r}.")
    if config.audio_config.window_hop != config.audio_config.target_length:
        raise ExportError("Overlapping windows (window_hop < target_length) cannot be exported.")

    with replacing(out) as part:
        part.mkdir()
        rate = extractor.sampling_rate
        clips = torch.randn(2, rate, generator=torch.Generator().manual_seed(0)) / 10
        _export(
            AudioGraph(model, extractor).eval(),
            {"waveform": clips, "lengths": torch.tensor([rate, rate // 2])},
            "audio_embeds",
            part / AUDIO_GRAPH,
            int8,
        )
        tokens = processor(text=["a dog barks", "rain"])
        tokens = {name: tokens[name] for name in ("input_ids", "attention_mask")}
        _export(TextGraph(model).eval(), tokens, "text_embeds", part / TEXT_GRAPH, int8)
        processor.tokenizer.save_pretrained(part)
        description = {
            "sampling_rate": rate,
            "hop_length": extractor.hop_length,
            "max_text_length": config.text_limit(known_limit(processor.tokenizer.model_max_length)),
            "logit_scale": model.get_logit_scale().item(),
            "logit_bias": None if model.logit_bias is None else model.logit_bias.item(),
            "weights": "int8" if int8 else "float32",
        }
        write_json(part / DESCRIPTION, description)
        differences = _compare(model, processor, part)
        wrong = {name: value for name, value in differences.items() if not value <= TOLERANCE}
        if wrong and not int8:
            raise ExportError(f"The exported graphs differ from torch: {wrong}; at most {TOLERANCE} is right.")
    return differences


def _export(graph: nn.Module, inputs: dict[str, torch.Tensor], output: str, path: Path, int8: bool) -> None:
    """Traces a module with example `inputs`, all of whose sizes may vary, and writes its graph."""
    program = torch.onnx.export(
        graph,
        kwargs=inputs,
        dynamo=True,
        dynamic_shapes={name: dict.fromkeys(range(x.ndim), torch.export.Dim.DYNAMIC) for name, x in inputs.items()},
        input_names=list(inputs),
        output_names=[output],
        verbose=False,
    )
    import onnx

    onnx.save(quantize(program.model_proto) if int8 else program.model_proto, path)


def quantize(graph: "onnx.ModelProto") -> "onnx.ModelProto":
    """Returns the graph with the weights of its matrix products in 8 bits, but for the mel filters."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    mel = [node.name for node in graph.graph.node if any("mel_filters" in name for name in node.input)]
    quantizer = MatMulNBitsQuantizer(graph, bits=8, block_size=INT8_BLOCK, is_symmetric=True, nodes_to_exclude=mel)
    quantizer.process()
    return quantizer.model.model


def exact_features(extractor: SupClapFeatureExtractor, waveform: np.ndarray) -> torch.Tensor:
    """Returns the log-mel features `(time, mel bands)` of a clip, computed in float64.

    A float32 transform rounds each bin by about 1e-7 of the loudest one. In a band that a tone leaves empty, that rounding
    is all there is, the logarithm lifts it to whole tenths of a dB, and each kind of processor rounds in its own way. So
    the extractor's float32 features are no measure of the graph, which has its transform in float64.

    Args:
        extractor: The feature extractor of the model.
        waveform: A mono clip at its rate `(samples,)`.
    """
    exact = copy.copy(extractor)
    exact.window, exact.mel_filters = (table.astype(np.float64) for table in (extractor.window, extractor.mel_filters))
    return exact.compute(torch.from_numpy(waveform).double(), torch.device("cpu"))[0]


def example_clips(rate: int) -> dict[str, np.ndarray]:
    """Returns two seconds of each kind of sound on which a spectrogram in dB may go wrong, as float32 at `rate` Hz.

    A tone, a harmonic tone and a constant leave bands empty, down to the floor of `top_db`; a click leaves frames empty.
    """
    times = np.arange(2 * rate) / rate
    noise = np.random.default_rng(1).standard_normal(len(times))
    voice = sum(np.sin(2 * np.pi * 120 * n * times) / n for n in range(1, 20)) / 10
    syllables = np.sin(2 * np.pi * 4 * times) > 0
    clips = {
        "noise": noise / 10,
        "silence": 0 * times,
        "click": np.eye(1, len(times), rate // 2)[0],
        "constant": 0 * times + 0.5,
        "tone": np.sin(0.3 * rate * times),
        "quiet tone": np.sin(0.3 * rate * times) / 1000,
        "harmonic tone": voice,
        "voice in noise": voice * syllables + noise / 1000,
    }
    return {kind: clip.astype(np.float32) for kind, clip in clips.items()}


def _compare(model: SupClapModel, processor: SupClapProcessor, folder: Path) -> dict[str, float]:
    """Returns the largest differences between onnxruntime and torch, which embeds features that are computed in float64.

    The clips are noise of three lengths, and each of `example_clips`; the texts a short one, a longer one, and one beyond
    the limit.
    """
    session = OnnxSupClap(folder)
    extractor = processor.feature_extractor
    rate = extractor.sampling_rate
    generator = torch.Generator().manual_seed(1)
    noises = [torch.randn(n, generator=generator).numpy() / 10 for n in (rate // 4, 3 * rate, 12 * rate)]
    audio = []
    for batch in (noises, list(example_clips(rate).values())):
        for clip, row in zip(batch, session.embed_audio(batch, rate), strict=True):
            features = exact_features(extractor, clip).float()[None]
            mask = torch.ones(features.shape[:2], dtype=torch.long)
            expected = model.get_audio_features(input_features=features, input_features_mask=mask).pooler_output[0]
            audio.append(np.abs(row - expected.numpy()).max())
    texts = ["rain", "a dog barks while a car passes by in the distance"]
    batches = [texts]
    limit = session.description["max_text_length"]
    if limit and limit <= LONGEST_CHECK:
        # Alone in a batch, because the memory that a batch takes grows with its longest text.
        batches.append(["rain " * (limit + 1)])
    with ExitStack() as undo:
        # The warning that this text is cut is expected.
        undo.callback(logging.disable, logging.root.manager.disable)
        logging.disable(max(logging.root.manager.disable, logging.WARNING))
        text = [
            np.abs(session.embed_texts(batch) - model.get_text_features(**processor(text=batch)).pooler_output.numpy())
            for batch in batches
        ]
    return {
        "audio": float(np.max(audio)),
        "text": float(max(difference.max() for difference in text)),
    }
