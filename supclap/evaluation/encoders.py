"""The models that the evaluation can score: SupCLAP, its ONNX export, CLAP of Transformers, or an adapter of yours.

The evaluation needs no more of a model than that it embeds clips and texts, see [`Encoder`]. An adapter of another model
is a class with the attributes and methods of that protocol:

```python
class Msclap:
    name = "msclap 2023"
    record = {"audio": "first 7 s"}  # what a reader of its scores has to know

    def __init__(self, checkpoint):
        self.model = ...
        self.fingerprint = fingerprint_folder(checkpoint)

    def embed_audio(self, audios, batch_size): ...  # a tensor (N, D)

    def embed_texts(self, texts, languages, batch_size): ...  # a tensor (N, D)
```

`supclap evaluate CHECKPOINT --encoder my_module:Msclap` calls it with CHECKPOINT.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

import supclap
from supclap.data.languages import tokenizer_codes
from supclap.errors import CheckpointError, SettingsError
from supclap.evaluation.embed import embed_audio, embed_texts
from supclap.export.onnx import DESCRIPTION, OnnxSupClap
from supclap.files import CARD, CONFIG, DRIFT, MANIFEST, RECIPE, RESULTS, RUN, TRAINING_CURVES


# Files in a checkpoint's folder that no embedding depends on, so that they are no part of its fingerprint.
_NOT_HASHED = (
    *(CARD, RECIPE, RESULTS, RUN, MANIFEST, DRIFT, TRAINING_CURVES),
    *(".gitattributes", "preempted", "queries.npz"),
    *("trainer_state.json", "training_args.bin", "optimizer.pt", "scheduler.pt", "scaler.pt"),
)
_PREFIXES_NOT_HASHED = ("_", "rng_state", "nonfinite_batches")
_FOLDERS_NOT_HASHED = ("checkpoint-", "_", ".", "evaluation", "queries", "per_class", "confusion", "runs")
# A download leaves out weights in formats that are not the one that is loaded.
_NOT_LOADED = ("*.onnx", "*.h5", "*.msgpack", "*.ot", "onnx/*", "openvino/*")

# The fields of an audio encoder's configuration that say how it embeds a long clip.
_LONG_AUDIO = ("target_length", "window_hop", "long_audio_pooling")


class Encoder(Protocol):
    """Anything that embeds clips and texts into one space.

    Attributes:
        name: The name of the model in tables.
        fingerprint: A hash of everything that an embedding depends on beside its input. Embeddings are cached under it.
        record: What a reader of the scores has to know, for instance how the model treats long clips.
    """

    name: str
    fingerprint: str
    record: dict[str, Any]

    def embed_audio(self, audios: Sequence[Any], batch_size: int) -> torch.Tensor:
        """Embeddings `(N, D)` of clips in any form that [`~processing_supclap.load_waveform`] takes."""
        ...

    def embed_texts(self, texts: Sequence[str], languages: Sequence[str] | None, batch_size: int) -> torch.Tensor:
        """Embeddings `(N, D)` of texts; `languages` holds one code per text, which multilingual encoders use."""
        ...


class SupClapEncoder:
    """A SupCLAP model, or any with the same interface, and its processor.

    Args:
        model: As in [`embed_audio`].
        processor: The processor of the model.
        name: The name of the model in tables.
        fingerprint: See [`Encoder`].
    """

    def __init__(self, model: Any, processor: Callable, name: str, fingerprint: str):
        self.model, self.processor = model, processor
        self.name, self.fingerprint = name, fingerprint
        self.is_multilingual = hasattr(getattr(processor, "tokenizer", None), "src_lang")
        audio = getattr(model.config, "audio_config", None)
        windows = {key: getattr(audio, key) for key in _LONG_AUDIO if hasattr(audio, key)}
        self.record = {
            "audio": windows or "the model's own way with long clips",
            "languages": "given to the text encoder" if self.is_multilingual else "not used by the text encoder",
        }

    def embed_audio(self, audios: Sequence[Any], batch_size: int) -> torch.Tensor:
        return embed_audio(self.model, self.processor, audios, batch_size)

    def embed_texts(self, texts: Sequence[str], languages: Sequence[str] | None, batch_size: int) -> torch.Tensor:
        codes = None if languages is None else tokenizer_codes(self.processor.tokenizer, languages)
        return embed_texts(self.model, self.processor, texts, batch_size, text_lang=codes)


class ClapEncoder:
    """A [`~transformers.ClapModel`] (`laion/*`), without the random crop of its feature extractor.

    The feature extractor crops a long clip at a random place. Here a clip is cut into windows of the extractor's length
    (10 s) instead, so that nothing is cropped and nothing is random. The embedding of the clip is the mean of the
    embeddings of its windows, weighted by their lengths.

    Args:
        model: The model.
        feature_extractor: The feature extractor of the model.
        tokenizer: The tokenizer of the model.
        name: The name of the model in tables.
        fingerprint: See [`Encoder`].
    """

    def __init__(self, model: Any, feature_extractor: Any, tokenizer: Any, name: str, fingerprint: str):
        self.model = model.eval()
        self.feature_extractor, self.tokenizer = feature_extractor, tokenizer
        self.name, self.fingerprint = name, fingerprint
        seconds = feature_extractor.nb_max_samples / feature_extractor.sampling_rate
        self.record = {"audio": f"windows of {seconds:g} s, mean weighted by length", "languages": "not used"}

    @torch.no_grad()
    def embed_audio(self, audios: Sequence[Any], batch_size: int) -> torch.Tensor:
        from processing_supclap import load_waveform

        rate, longest = self.feature_extractor.sampling_rate, self.feature_extractor.nb_max_samples
        embeds = []
        for first in range(0, len(audios), batch_size):
            windows, owner = [], []
            for position in range(first, min(first + batch_size, len(audios))):
                waveform = load_waveform(audios[position], target_sampling_rate=rate, name=f"audio[{position}]")
                cuts = waveform.split(longest)
                windows += [cut.numpy() for cut in cuts]
                owner += [position - first] * len(cuts)
            parts = [self._embed_windows(windows[i : i + batch_size]) for i in range(0, len(windows), batch_size)]
            lengths = torch.tensor([float(len(window)) for window in windows])
            sums = torch.zeros(owner[-1] + 1, parts[0].shape[1])
            embeds.append(sums.index_add(0, torch.tensor(owner), lengths[:, None] * torch.cat(parts)))
        return torch.nn.functional.normalize(torch.cat(embeds), dim=-1)

    def _embed_windows(self, windows: list[np.ndarray]) -> torch.Tensor:
        rate = self.feature_extractor.sampling_rate
        inputs = self.feature_extractor(windows, sampling_rate=rate, return_tensors="pt")
        # The extractor of a fusion model marks a random clip as longer when no clip of the batch is. Here none is.
        inputs["is_longer"] = torch.zeros(len(windows), 1, dtype=torch.bool)
        inputs = inputs.to(self.model.device)
        return self.model.get_audio_features(**inputs).pooler_output.float().cpu()

    @torch.no_grad()
    def embed_texts(self, texts: Sequence[str], languages: Sequence[str] | None, batch_size: int) -> torch.Tensor:
        parts = []
        for start in range(0, len(texts), batch_size):
            inputs = self.tokenizer(
                list(texts[start : start + batch_size]), padding=True, truncation=True, return_tensors="pt"
            )
            parts.append(self.model.get_text_features(**inputs.to(self.model.device)).pooler_output.float().cpu())
        return torch.cat(parts)


class OnnxEncoder:
    """The two graphs that [`~supclap.export.onnx.export_onnx`] wrote, run by onnxruntime on the CPU.

    Args:
        session: The graphs.
        name: The name of the model in tables.
        fingerprint: See [`Encoder`].
    """

    def __init__(self, session: OnnxSupClap, name: str, fingerprint: str):
        self.session, self.name, self.fingerprint = session, name, fingerprint
        weights = session.description["weights"]
        self.record = {"audio": "windows inside the graph", "languages": "not used", "weights": weights}

    def embed_audio(self, audios: Sequence[Any], batch_size: int) -> torch.Tensor:
        starts = range(0, len(audios), batch_size)
        return _joined(self.session.embed_audio(list(audios[start : start + batch_size])) for start in starts)

    def embed_texts(self, texts: Sequence[str], languages: Sequence[str] | None, batch_size: int) -> torch.Tensor:
        starts = range(0, len(texts), batch_size)
        return _joined(self.session.embed_texts(list(texts[start : start + batch_size])) for start in starts)


def _joined(parts: Iterable[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(list(parts)))


def fingerprint_folder(folder: str | Path, *context: str) -> str:
    """A hash of everything that the embeddings of a checkpoint depend on.

    The hash covers the weights, the configuration, the tokenizer and the code in the folder. It leaves out what a
    training run or an evaluation writes beside them: the optimizer, logs, results, cards and inner checkpoints.

    Args:
        folder: The folder of the checkpoint.
        context: What else the embeddings depend on, for instance the version of a library.
    """
    folder = Path(folder)
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        inner = any(part.startswith(_FOLDERS_NOT_HASHED) for part in relative.parts[:-1])
        if not path.is_file() or inner or path.name in _NOT_HASHED or path.name.startswith(_PREFIXES_NOT_HASHED):
            continue
        digest.update(str(relative).encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    for part in context:
        digest.update(part.encode())
    return digest.hexdigest()


def fingerprint_supclap(folder: str | Path) -> str:
    """[`fingerprint_folder`] of a SupCLAP model, which also depends on the code that turns a clip or a text into a vector."""
    roots = [Path(import_module(name).__file__).parent for name in ("modeling_supclap", "processing_supclap")]
    code = (hashlib.sha256(path.read_bytes()).hexdigest() for root in roots for path in sorted(root.glob("*.py")))
    return fingerprint_folder(folder, supclap.__version__, "".join(code))


def find_folder(checkpoint: str | Path) -> Path:
    """The folder of a checkpoint. The model of a Hub id is downloaded first.

    Raises:
        CheckpointError: The folder holds no checkpoint, or the Hub has no such model.
    """
    folder = Path(checkpoint)
    if folder.is_dir():
        if not any((folder / name).is_file() for name in (CONFIG, DESCRIPTION)):
            raise CheckpointError(f"{str(folder)!r} has no {CONFIG}: it is no checkpoint.")
        return folder
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(str(checkpoint), ignore_patterns=list(_NOT_LOADED)))
    except Exception as error:  # an unusable id, no network and no access all mean that there is no checkpoint
        reason = str(error).splitlines()[0]
        raise CheckpointError(
            f"No checkpoint {str(checkpoint)!r}: no such folder, and the Hub says: {reason}"
        ) from error


def load_encoder(checkpoint: str | Path, device: str | None = None) -> Encoder:
    """Loads a checkpoint; the `model_type` of its configuration decides the kind of encoder.

    Args:
        checkpoint: Folder or Hub id of a SupCLAP or a Transformers CLAP model, or a folder of exported graphs.
        device: Where to put the model. When omitted, this is the accelerator if there is one, else the CPU.

    Raises:
        CheckpointError: There is no such checkpoint.
        SettingsError: The model is of another kind, which needs an adapter.
    """
    import transformers
    from transformers import AutoConfig, AutoFeatureExtractor, AutoModel, AutoProcessor, AutoTokenizer

    from modeling_supclap.weights_supclap import check_weight_files

    folder = find_folder(checkpoint)
    if (folder / DESCRIPTION).is_file():
        session = OnnxSupClap(folder)
        runtime = f"onnxruntime {import_module('onnxruntime').__version__}"
        return OnnxEncoder(session, str(checkpoint), fingerprint_folder(folder, supclap.__version__, runtime))
    if device is None:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        device = accelerator.type if accelerator else "cpu"
    kind = AutoConfig.from_pretrained(folder).model_type
    name = str(checkpoint)
    # The model computes in full precision whatever the type of the file, for scores in half precision depend on the machine.
    if kind == "supclap":
        model = AutoModel.from_pretrained(folder, dtype=torch.float32).to(device).eval()
        processor = AutoProcessor.from_pretrained(folder)
        return SupClapEncoder(model, processor, name, fingerprint_supclap(folder))
    if kind == "clap":
        check_weight_files(folder)
        model = AutoModel.from_pretrained(folder, dtype=torch.float32, use_safetensors=True).to(device)
        extractor, tokenizer = AutoFeatureExtractor.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        fingerprint = fingerprint_folder(folder, transformers.__version__, ClapEncoder.__name__)
        return ClapEncoder(model, extractor, tokenizer, name, fingerprint)
    raise SettingsError(
        f"{name!r} is a {kind!r} model; 'supclap' and 'clap' are known. Write an adapter with embed_audio and "
        "embed_texts (see supclap.evaluation.encoders) and pass it by --encoder module:factory."
    )


def load_custom_encoder(factory: str, checkpoint: str) -> Encoder:
    """Calls `module:factory` with the checkpoint and returns the encoder that it makes.

    Raises:
        SettingsError: There is no such module or factory, or the object that it returns is no [`Encoder`].
    """
    module, _, attribute = factory.partition(":")
    try:
        make = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"--encoder {factory!r}: expected module:factory that can be imported ({error})."
        ) from error
    encoder = make(checkpoint)
    missing = [
        name for name in ("name", "fingerprint", "record", "embed_audio", "embed_texts") if not hasattr(encoder, name)
    ]
    if missing:
        raise SettingsError(f"--encoder {factory!r}: the object it makes has no {', '.join(missing)}.")
    return encoder
