"""SupClapProcessor: the feature extractor and the tokenizer behind one call."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoTokenizer, BatchFeature, ProcessorMixin

from .encoder_features_supclap import SupClapEncoderFeatureExtractor
from .text_supclap import TEXT_OPTIONS, encode_text


if TYPE_CHECKING:
    # Saving a processor copies the files that this one names. The pipeline is among them, so that the task which the
    # config names has its code, and so is all that these files need themselves: Transformers before 5.8 opens a folder
    # with those files alone that a file names itself.
    from .audio_supclap import load_waveform  # noqa: F401
    from .clip_features_supclap import ClipFeatureExtractor  # noqa: F401
    from .decoding_supclap import decode  # noqa: F401
    from .feature_extraction_supclap import SupClapFeatureExtractor  # noqa: F401
    from .pipeline_supclap import SupClapZeroShotAudioClassificationPipeline  # noqa: F401


# The files that make a folder a SentenceTransformer: it has one module, two of whose methods return the embeddings as they
# are. The files are data only; the library needs no code of ours but that of the model and the processor.
SENTENCE_TRANSFORMERS_FILES = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
    ],
    "sentence_bert_config.json": {
        "transformer_task": "feature-extraction",
        "modality_config": {
            modality: {"method": f"get_{modality}_features", "method_output_name": "pooler_output"}
            for modality in ("text", "audio")
        },
        "module_output_name": "sentence_embedding",
    },
    "config_sentence_transformers.json": {"model_type": "SentenceTransformer", "similarity_fn_name": "cosine"},
}


class SupClapProcessor(ProcessorMixin):
    r"""Prepares audio and texts for [`SupClapModel`].

    Args:
        feature_extractor ([`SupClapFeatureExtractor`] or [`SupClapEncoderFeatureExtractor`]): Turns clips into what
            the audio encoder takes.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer of the text encoder, of any kind.

    Example:

    ```python
    >>> from transformers import AutoProcessor

    >>> processor = AutoProcessor.from_pretrained("path/to/checkpoint", trust_remote_code=True)
    >>> inputs = processor(text=["a dog barks", "rain"], audio=["clip.wav"])
    >>> sorted(inputs)
    ['attention_mask', 'input_features', 'input_features_mask', 'input_ids', 'token_type_ids']
    ```
    """

    _auto_class = "AutoProcessor"

    def __init__(self, feature_extractor, tokenizer):
        super().__init__(feature_extractor, tokenizer)

    @classmethod
    def from_text_audio_pretrained(cls, text_model: str, audio_model: str) -> "SupClapProcessor":
        """Returns the processor of the model that `SupClapModel.from_text_audio_pretrained` builds from the same names.

        Args:
            text_model: Hub id or folder with the tokenizer.
            audio_model: Hub id or folder of the audio encoder, whose own feature extraction is used.
        """
        tokenizer = AutoTokenizer.from_pretrained(text_model)
        return cls(SupClapEncoderFeatureExtractor.from_encoder_pretrained(audio_model), tokenizer)

    def __call__(
        self,
        *args,
        text: str | list[str] | None = None,
        audio: Any = None,
        sampling_rate: int | None = None,
        text_lang: str | list[str] | None = None,
        return_tensors: str | None = "pt",
        device: str | torch.device | None = None,
        text_kwargs: dict | None = None,
        audio_kwargs: dict | None = None,
        common_kwargs: dict | None = None,
        **kwargs,
    ) -> BatchFeature:
        """Prepares texts, audio or both; their numbers need not be equal.

        Args:
            text: A text or a list of texts. Padded to the longest, and cut at the tokenizer's limit with a warning.
            audio: A clip or a list of clips, in any form that [`load_waveform`] takes.
            sampling_rate: Rate in Hz of bare arrays.
            text_lang: Language code of all texts or one per text, for tokenizers that take a language.
            return_tensors: `"pt"` or `"np"`.
            device: Where to compute the features; all results of `"pt"` are put there.
            text_kwargs: Options of the text side only.
            audio_kwargs: Options of the feature extractor's call only.
            common_kwargs: `return_tensors` and `device`, in the form generic code passes them.
            kwargs: Options of the tokenizer's call (`max_length`, `padding`, ...). They never reach the audio.

        Returns:
            `input_ids`, `attention_mask`, ... (n_text, length) for texts; `input_features` (n_audio, time, n_mels)
            and `input_features_mask` (n_audio, time) for audio.

        Raises:
            TypeError: Positional or unknown arguments.
            ValueError: Neither text nor audio, or whatever is wrong with one of them.
        """
        if args:
            raise TypeError("Name the input: processor(text=...), processor(audio=..., sampling_rate=...) or both.")
        # Code for processors of any kind passes empty options for the modalities that it does not use.
        options = {key: value for key, value in kwargs.items() if not key.startswith(("images", "videos")) or value}
        text_options = {**options, **(text_kwargs or {})}
        unknown = sorted(set(text_options) - set(TEXT_OPTIONS))
        if unknown:
            raise TypeError(
                f"Unknown arguments {unknown}. The inputs are `text` and `audio`, the options of texts "
                f"{', '.join(TEXT_OPTIONS)}; those of audio go into audio_kwargs."
            )
        if text is None and audio is None:
            raise ValueError("Nothing to process: pass text=..., audio=... or both.")
        common = {"return_tensors": return_tensors, "device": device, **(common_kwargs or {})}
        inputs = {}
        if text is not None:
            options = {"return_tensors": common["return_tensors"], "text_lang": text_lang, **text_options}
            inputs.update(encode_text(self.tokenizer, text, **options))
        if audio is not None:
            options = {"sampling_rate": sampling_rate, **common, **(audio_kwargs or {})}
            inputs.update(self.feature_extractor(audio, **options))
        batch = BatchFeature(inputs)
        return batch if common["device"] is None else batch.to(common["device"])

    def save_pretrained(self, save_directory: str | Path, push_to_hub: bool = False, **kwargs) -> list[str]:
        """Saves the processor, the code of the pipeline, and the files that make the folder a SentenceTransformer.

        Args:
            save_directory: Folder, made where it is missing.
            push_to_hub, kwargs: As for any processor.

        Returns:
            The files written.
        """
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        # SentenceTransformers passes on bare arrays without a rate. This says that they have the model's rate.
        rate = {"processing_kwargs": {"audio": {"sampling_rate": self.feature_extractor.sampling_rate}}}
        written = []
        for name, content in SENTENCE_TRANSFORMERS_FILES.items():
            content = {**content, **rate} if name == "sentence_bert_config.json" else content
            part = folder / f"{name}.part"
            part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            written.append(str(part.replace(folder / name)))
        # Transformers takes the name of the repository from the folder, and needs a string for that.
        saved = super().save_pretrained(os.fspath(save_directory), push_to_hub=push_to_hub, **kwargs)
        return written + list(saved or [])

    def _upload_modified_files(
        self, working_dir: str | os.PathLike, repo_id: str, files_timestamps: dict[str, float], **kwargs
    ) -> Any:
        # Transformers uploads what is newer than its list of files. The files for SentenceTransformer were written before
        # that list was made, so they are taken out of it.
        new = {name: time for name, time in files_timestamps.items() if name not in SENTENCE_TRANSFORMERS_FILES}
        return super()._upload_modified_files(working_dir, repo_id, new, **kwargs)


__all__ = ["SupClapProcessor"]
