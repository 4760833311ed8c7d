"""What a frozen text tower makes of each training caption, computed once instead of once an epoch."""

from collections.abc import Iterable

import torch
from torch.utils.data import IterableDataset
from transformers import ProcessorMixin, Trainer

from modeling_supclap import SupClapModel
from supclap.data.rows import without_audio
from supclap.data.scenes import SceneMixer
from supclap.errors import SettingsError
from supclap.training.callbacks.part import TrainingPart


class FrozenTextCache(TrainingPart):
    """Pooled outputs of the frozen text tower by the tokens of the text. Its projection is computed anew: it is trained.

    It is filled before the first step of training. A text that is not in it is computed when it comes, and not kept. What
    a step computes therefore depends on its batch and on `fill` alone, and a resumed run repeats it exactly.

    Args:
        model: A model whose text tower has no trained parameters.
        texts: Every caption of training.

    Raises:
        SettingsError: Parts of the text tower are trained.
    """

    def __init__(self, model: SupClapModel, texts: Iterable[str] = ()):
        if any(parameter.requires_grad for parameter in model.text_model.parameters()):
            raise SettingsError("cache_frozen_text needs a text tower that is not trained: set freeze_text: true.")
        self.model, self.texts = model, texts
        self.pooled: dict[bytes, torch.Tensor] = {}

    @classmethod
    def for_trainer(cls, trainer: Trainer) -> "FrozenTextCache | None":
        if not trainer.args.cache_frozen_text:
            return None
        rows = getattr(trainer.train_dataset, "rows", None)
        if rows is None or isinstance(rows, SceneMixer) or isinstance(trainer.train_dataset, IterableDataset):
            raise SettingsError(
                "cache_frozen_text needs to know all captions beforehand: leave it out for scenes and streams."
            )
        if hasattr(getattr(trainer.processing_class, "tokenizer", None), "src_lang"):
            raise SettingsError(
                "cache_frozen_text does not tell languages apart: leave it out for a multilingual tokenizer."
            )
        captions = {text for index in range(len(rows)) for text in without_audio(rows, index)["captions"]}
        return cls(trainer.model.clap, captions)

    def on_train_begin(self, args, state, control, model=None, processing_class=None, **kwargs):
        self.fill(processing_class, self.texts)
        model.text_cache = self

    def fill(self, processor: ProcessorMixin, texts: Iterable[str], batch_size: int = 64) -> None:
        """Computes the pooled outputs of texts, each once."""
        # Sorted by length, so that the texts of a batch need little padding.
        texts = sorted(set(texts), key=lambda text: (len(text), text))
        device = next(self.model.text_model.parameters()).device
        self.model.text_model.eval()  # a frozen tower stays in this mode in training too
        for start in range(0, len(texts), batch_size):
            inputs = processor(text=texts[start : start + batch_size], return_tensors="pt").to(device)
            self.pooled |= zip(_keys(inputs), self._pool(inputs), strict=True)

    @torch.no_grad()
    def _pool(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """What the model gives to the projection of its texts."""
        captured: list[torch.Tensor] = []
        hook = self.model.text_projection.register_forward_pre_hook(lambda _, args: captured.append(args[0]))
        try:
            self.model.get_text_features(**inputs)
        finally:
            hook.remove()
        return captured[0]

    def embed(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Joint embeddings `(batch, D)` of tokenized texts, with gradients for the projection."""
        keys = _keys(inputs)
        missing = [row for row, key in enumerate(keys) if key not in self.pooled]
        found: dict[bytes, torch.Tensor] = {}
        if missing:
            pooled = self._pool({name: value[missing] for name, value in inputs.items()})
            found = {keys[row]: value for row, value in zip(missing, pooled, strict=True)}
        pooled = torch.stack([found[key] if key in found else self.pooled[key] for key in keys])
        pooled = pooled.to(next(self.model.text_projection.parameters()).device)
        return torch.nn.functional.normalize(self.model.text_projection(pooled).float(), dim=-1)


def _keys(inputs: dict[str, torch.Tensor]) -> list[bytes]:
    """The tokens of each text, without padding, as keys."""
    ids, masks = inputs["input_ids"].cpu(), inputs["attention_mask"].cpu().bool()
    return [row[mask].numpy().tobytes() for row, mask in zip(ids, masks, strict=True)]
