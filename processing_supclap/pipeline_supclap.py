"""Zero-shot audio classification with the interface and output of Transformers' pipeline, but no silent wrong answers."""

import copy
import numbers
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import ZeroShotAudioClassificationPipeline

from .audio_supclap import is_number, load_waveform, to_array
from .processing_supclap import SupClapProcessor
from .text_supclap import check_texts, encode_text


if TYPE_CHECKING:
    # Transformers before 5.8 copies only the files that a file names itself, so this one names what its imports need.
    from .clip_features_supclap import ClipFeatureExtractor  # noqa: F401
    from .decoding_supclap import decode  # noqa: F401
    from .encoder_features_supclap import SupClapEncoderFeatureExtractor  # noqa: F401
    from .feature_extraction_supclap import SupClapFeatureExtractor  # noqa: F401


DEFAULT_TEMPLATE = "This is a sound of {}."
LABEL_BATCH_SIZE = 256
SINGLE_CLIPS = (str, bytes, bytearray, memoryview, dict)
PARAMETERS = (
    "candidate_labels",
    "hypothesis_template",
    "sampling_rate",
    "text_lang",
    "top_k",
    "function_to_apply",
    "multi_label",
)
SCORE_FUNCTIONS = {
    "softmax": lambda logits: logits.softmax(-1),
    "sigmoid": lambda logits: logits.sigmoid(),
    "none": lambda logits: logits,
}


class _NumberedClip(NamedTuple):
    """A clip of several, with its position, by which errors call it."""

    position: int
    audio: Any


class SupClapZeroShotAudioClassificationPipeline(ZeroShotAudioClassificationPipeline):
    """Scores clips of any form and length against labels given in words.

    The labels are embedded once for each set of labels and templates, not again for each clip. Clips of any length are
    embedded whole. The scores are a function of the scaled similarities, plus the model's bias where it has one.

    Example:

    ```python
    >>> from transformers import pipeline

    >>> task = "supclap-zero-shot-audio-classification"
    >>> classify = pipeline(task, model="path/to/checkpoint", trust_remote_code=True)
    >>> classify("clip.wav", candidate_labels=["dog", "rain"])
    [{'score': 0.93, 'label': 'rain'}, {'score': 0.07, 'label': 'dog'}]
    ```
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._label_cache: dict[tuple, torch.Tensor] = {}
        self._label_tokenizer = None

    def __call__(self, audios: Any, **kwargs) -> list[dict[str, Any]] | list[list[dict[str, Any]]]:
        """Classifies one clip, a list of clips, or a dataset or generator of clips.

        Args:
            audios: A clip in any form that [`load_waveform`] takes, a sound file opened in binary mode, a row with one
                of these under `"audio"`, or several of them: a list, a dataset, a column of one, or a generator. A list
                of plain numbers is one clip.
            candidate_labels (`list[str]` or `str`): The labels; a string is split at its commas.
            hypothesis_template (`str` or `list[str]`): Sentence with `{}` where the label goes. With several, the
                embedding of a label is the normalized mean over the templates.
            sampling_rate (`int`): Rate in Hz of bare arrays. Files, dicts and decoders carry their own.
            text_lang (`str`): Language code of the labels, for tokenizers that take a language.
            top_k (`int`): How many labels to return; all by default.
            function_to_apply (`str`): `"softmax"` (default; the labels compete and the scores sum to 1), `"sigmoid"`
                (each label on its own) or `"none"` (the logits).
            multi_label (`bool`): Score each label on its own, as the probability that a model trained with the sigmoid
                loss (SigLIP) gives it. Other models have no bias to calibrate it and are refused.
            batch_size (`int`): Clips per forward pass. The scores do not depend on it.

        Returns:
            `[{"score": float, "label": str}, ...]`, the highest score first; for a list, one such list per clip; for
            a dataset or generator, an iterator over them that reads clip by clip.

        Raises:
            TypeError: Unknown arguments, or of the wrong type; a file opened as text.
            ValueError: No labels, an empty or repeated label, a template without `{}`, bad audio (named), a model whose
                scores are not finite, or `multi_label` of a model that is not calibrated for it.
        """
        if "candidate_labels" not in {**self._forward_params, **kwargs}:
            raise ValueError("No labels: pass candidate_labels=['dog', 'rain'] or candidate_labels='dog, rain'.")
        is_list = isinstance(audios, list | tuple)
        if is_list and len(audios) == 0:
            raise ValueError("audios is an empty list. Pass at least one clip.")
        if is_list and is_number(audios[0]):
            audios = to_array(audios, "audio")
        elif isinstance(audios, Iterable) and not (
            isinstance(audios, SINGLE_CLIPS) or hasattr(audios, "__array__") or hasattr(audios, "read")
        ):
            numbered = (_NumberedClip(*pair) for pair in enumerate(audios))
            audios = list(numbered) if is_list else numbered
        # A model that comes out of training is in training mode, where dropout makes scores random.
        self.model.eval()
        return super().__call__(audios, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs) -> None:
        """Saves a whole checkpoint: the model, and the processor with the code of both.

        The stock method saves the tokenizer and the feature extractor alone, without the code that the model's config
        names for this pipeline.

        Args:
            save_directory: Folder, made where it is missing.
            kwargs: As for the `save_pretrained` of any model.
        """
        self.model.save_pretrained(save_directory, **kwargs)
        SupClapProcessor(self.feature_extractor, self.tokenizer).save_pretrained(save_directory, **kwargs)

    def _sanitize_parameters(self, **kwargs) -> tuple[dict, dict, dict]:
        unknown = sorted(set(kwargs) - set(PARAMETERS))
        if unknown:
            raise TypeError(f"Unknown arguments {unknown}; this pipeline takes {', '.join(PARAMETERS)}.")
        preprocess = {key: kwargs[key] for key in ("sampling_rate",) if key in kwargs}
        forward = {key: kwargs[key] for key in ("text_lang",) if key in kwargs}
        postprocess = {}
        if "candidate_labels" in kwargs:
            forward["candidate_labels"] = postprocess["candidate_labels"] = check_labels(kwargs["candidate_labels"])
        if "hypothesis_template" in kwargs:
            forward["hypothesis_template"] = check_templates(kwargs["hypothesis_template"])
        if kwargs.get("top_k") is not None:
            top_k = kwargs["top_k"]
            if isinstance(top_k, bool) or not isinstance(top_k, numbers.Integral) or top_k < 1:
                raise ValueError(f"top_k must be a whole number of at least 1, got {top_k!r}.")
            postprocess["top_k"] = int(top_k)
        function = kwargs.get("function_to_apply")
        if kwargs.get("multi_label"):
            if self.model.logit_bias is None:
                raise ValueError(
                    "multi_label=True needs a model trained with the sigmoid loss (SigLIP). This one has no bias, so its "
                    "sigmoids are no probabilities: nearly all lie above 1/2. function_to_apply='none' gives the scaled "
                    "similarities, to which a threshold of your own applies."
                )
            if function not in (None, "sigmoid"):
                raise ValueError(f"multi_label=True is the sigmoid and contradicts function_to_apply={function!r}.")
            function = "sigmoid"
        if function is not None:
            if function not in SCORE_FUNCTIONS:
                raise ValueError(f"function_to_apply must be one of {list(SCORE_FUNCTIONS)}, got {function!r}.")
            postprocess["function_to_apply"] = function
        return preprocess, forward, postprocess

    def get_iterator(self, *args, **kwargs):
        # Only audio is batched here. If the pipeline has a tokenizer, the collator of Transformers insists that it has a
        # padding token and pads on the same side as the audio, and so refuses tokenizers that work. So a copy without
        # tokenizer does the batching, and keeps the tokenizer under another name for the labels.
        audio_only = copy.copy(self)
        audio_only.tokenizer, audio_only._label_tokenizer = None, self.tokenizer
        return super(SupClapZeroShotAudioClassificationPipeline, audio_only).get_iterator(*args, **kwargs)

    def preprocess(self, audio: Any, sampling_rate: int | None = None):
        name = "audio"
        if isinstance(audio, _NumberedClip):
            name, audio = f"audios[{audio.position}]", audio.audio
        if isinstance(audio, dict) and "audio" in audio:  # a row of a dataset
            audio = audio["audio"]
        if hasattr(audio, "read"):
            if hasattr(audio, "encoding"):
                raise TypeError(
                    f"{name}: the file is open as text. Open sound files in binary mode: open(path, 'rb')."
                )
            audio = audio.read()
        rate = self.feature_extractor.sampling_rate
        waveform = load_waveform(audio, sampling_rate, rate, name, self.feature_extractor.hop_length)
        return self.feature_extractor([waveform], sampling_rate=rate, return_tensors="pt")

    def _forward(
        self,
        model_inputs: dict,
        candidate_labels: tuple[str, ...],
        hypothesis_template: tuple[str, ...] = (DEFAULT_TEMPLATE,),
        text_lang: str | None = None,
    ) -> dict[str, torch.Tensor]:
        labels = self._embed_labels(candidate_labels, hypothesis_template, text_lang)
        clips = self.model.get_audio_features(**model_inputs).pooler_output.float()
        logits = clips @ labels.t() * self.model.get_logit_scale().float()
        if self.model.logit_bias is not None:
            logits = logits + self.model.logit_bias.float()
        return {"logits": logits}

    def postprocess(
        self,
        model_outputs: dict,
        candidate_labels: tuple[str, ...],
        top_k: int | None = None,
        function_to_apply: str = "softmax",
    ) -> list[dict[str, Any]]:
        logits = model_outputs["logits"][0]
        if not torch.isfinite(logits).all():
            raise ValueError(
                "The model gave scores that are not finite: its weights are broken, or their dtype overflows. Load it "
                "with dtype=torch.float32."
            )
        scores = SCORE_FUNCTIONS[function_to_apply](logits)
        order = scores.argsort(descending=True, stable=True)[:top_k].tolist()
        return [{"score": scores[i].item(), "label": candidate_labels[i]} for i in order]

    def _embed_labels(self, labels: tuple[str, ...], templates: tuple[str, ...], lang: str | None) -> torch.Tensor:
        """Returns the normalized embeddings of the labels, `(n_labels, projection_dim)`. The last ones are kept."""
        # The weights may change while the pipeline exists, by training or by an adapter that is merged. So the key holds
        # their places in memory and how often each was changed.
        weights = tuple((p.data_ptr(), 0 if p.is_inference() else p._version) for p in self.model.parameters())
        tokenizer = self._label_tokenizer if self.tokenizer is None else self.tokenizer
        key = (labels, templates, lang, getattr(tokenizer, "src_lang", None), weights)
        cached = self._label_cache.get(key)
        if cached is None:
            texts = [template.replace("{}", label) for template in templates for label in labels]
            embeds = []
            for start in range(0, len(texts), LABEL_BATCH_SIZE):
                tokens = encode_text(tokenizer, texts[start : start + LABEL_BATCH_SIZE], lang).to(self.device)
                embeds.append(self.model.get_text_features(**tokens).pooler_output.float())
            mean = torch.cat(embeds).unflatten(0, (len(templates), len(labels))).mean(0)
            cached = torch.nn.functional.normalize(mean, dim=-1)
            self._label_cache.clear()
            self._label_cache[key] = cached
        return cached


def check_labels(labels: str | Iterable[str]) -> tuple[str, ...]:
    """Returns the labels as a tuple. A string is split at its commas, and repeated labels are an error."""
    if isinstance(labels, str):
        labels = [label.strip() for label in labels.split(",")]
    labels = tuple(check_texts(labels, "candidate_labels"))
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        raise ValueError(f"candidate_labels repeats {repeated}, which would share their score. Pass each label once.")
    return labels


def check_templates(templates: str | Iterable[str]) -> tuple[str, ...]:
    """Returns the templates as a tuple. One without a place for the label is an error."""
    templates = tuple(check_texts(templates, "hypothesis_template"))
    for template in templates:
        if "{}" not in template:
            raise ValueError(
                f"hypothesis_template {template!r} has no {{}}, so every label would score the same. Put {{}} where "
                "the label goes, for example 'This is a sound of {}.'; '{}' alone uses the labels as they are."
            )
    return templates


__all__ = ["SupClapZeroShotAudioClassificationPipeline"]
