"""SupCLAP, and any other [`~supclap.evaluation.encoders.Encoder`], in mteb (MAEB): metadata, wrapper, one task.

```python
import mteb
from supclap.evaluation.mteb import model_meta

meta = model_meta("me/my-supclap", license="cc-by-nc-4.0", training_datasets={"Clotho"})
mteb.evaluate(meta, mteb.get_tasks(tasks=["ESC50_Zeroshot"]))
```
"""

from collections.abc import Collection, Sequence
from typing import Any

import mteb
import numpy as np
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder
from torch.utils.data import DataLoader

from supclap.data.languages import NLLB
from supclap.errors import DataNotFoundError
from supclap.evaluation.cache import CachedEncoder
from supclap.evaluation.encoders import Encoder, load_encoder
from supclap.evaluation.suite import Task


class MtebEncoder(AbsEncoder):
    """A dual encoder behind mteb's interface.

    Items with a text and a clip get the sum of both embeddings, as in mteb's own CLAP wrappers. Multilingual text
    encoders are told the language of a task where it is a single one of the paper's eight.

    Args:
        encoder: The dual encoder.
        meta: Its metadata; made from the encoder when omitted.
    """

    def __init__(self, encoder: Encoder, meta: ModelMeta | None = None):
        self.encoder = encoder
        self.mteb_model_meta = meta or model_meta(encoder.name, revision=encoder.fingerprint)

    def encode(
        self,
        inputs: DataLoader,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        batch_size: int = 32,
        **kwargs: Any,
    ) -> np.ndarray:
        """Embeddings `(N, D)` of the items of a data loader, whose batches have `text`, `audio` or both."""
        language = _language(task_metadata, hf_subset)
        embeds = []
        for batch in inputs:
            parts = []
            if "text" in batch:
                texts = list(batch["text"])
                codes = None if language is None else [language] * len(texts)
                parts.append(self.encoder.embed_texts(texts, codes, batch_size))
            if "audio" in batch:
                parts.append(self.encoder.embed_audio(list(batch["audio"]), batch_size))
            if not parts:
                raise ValueError(f"{task_metadata.name} gives {sorted(batch)}: a dual encoder needs text or audio.")
            embeds.append(sum(part.float().cpu().numpy() for part in parts))
        return np.concatenate(embeds)


def _language(task_metadata: Any, hf_subset: str) -> str | None:
    spoken = {script.replace("-", "_") for script in task_metadata.hf_subsets_to_langscripts.get(hf_subset, ())}
    return spoken.pop() if len(spoken) == 1 and spoken <= set(NLLB.values()) else None


def _load(model_name: str, revision: str | None = None, device: str | None = None, **kwargs: Any) -> MtebEncoder:
    return MtebEncoder(load_encoder(kwargs.get("checkpoint", model_name), device))


def model_meta(
    name: str,
    *,
    checkpoint: str | None = None,
    license: str | None = None,
    training_datasets: Collection[str] | None = None,
    languages: Sequence[str] = ("eng-Latn",),
    revision: str | None = None,
    release_date: str | None = None,
    n_parameters: int | None = None,
    embed_dim: int | None = None,
    max_tokens: int | None = None,
) -> ModelMeta:
    """Metadata of a model for mteb.

    Args:
        name: `organisation/model`, the id on the Hub; other names are put under `local/`.
        checkpoint: Folder or Hub id to load it from; `name` when omitted.
        license: Licence of the weights, as on the Hub (`apache-2.0`). A model inherits that of its encoders and data: from
            SONAR's text encoder it is `cc-by-nc-4.0`.
        training_datasets: Names, as mteb spells them, of all data the model was trained on, by which mteb tells which of
            its tasks are contaminated; an empty set when none is in mteb, `None` when that is not known.
        languages: Language and script of each language of the text encoder.
        revision: Commit on the Hub, or another version.
        release_date: `YYYY-MM-DD`.
        n_parameters: Number of parameters.
        embed_dim: Size of the joint embedding.
        max_tokens: Limit of the text encoder.

    Raises:
        ValueError: A value that mteb does not take, e.g. an unknown licence.
    """
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    return ModelMeta(
        loader=_load,
        loader_kwargs={"checkpoint": checkpoint or name},
        name=name if len(parts) == 2 and "/".join(parts) == name else "local/" + "--".join(parts),
        revision=revision,
        release_date=release_date,
        languages=list(languages),
        n_parameters=n_parameters,
        memory_usage_mb=None if n_parameters is None else n_parameters * 4 / 2**20,
        max_tokens=max_tokens,
        embed_dim=embed_dim,
        license=license,
        open_weights=None if license is None else True,
        public_training_code=None,
        public_training_data=None,
        framework=["PyTorch", "Transformers", "safetensors"],
        similarity_fn_name="cosine",
        use_instructions=False,
        training_datasets=None if training_datasets is None else set(training_datasets),
        modalities=["audio", "text"],
        citation=None,
    )


def run_mteb_task(task: Task, encoder: CachedEncoder) -> dict[str, Any]:
    """Runs a task of mteb by its own evaluator; what it ran before on the same checkpoint is not run again.

    Returns:
        The entry of the task: mteb's main score, the mean over its subsets, which has no interval.

    Raises:
        DataNotFoundError: Its data cannot be had.
        ValueError: mteb has no such task.
    """
    try:
        mteb_task = mteb.get_task(task.mteb_task)
    except KeyError as error:
        raise ValueError(f"mteb {mteb.__version__} has no task {task.mteb_task!r}.") from error
    try:
        mteb_task.load_data()
    except OSError as error:  # no network, no such repository
        raise DataNotFoundError(f"data of {task.mteb_task} cannot be had: {str(error).splitlines()[0]}") from error
    model = MtebEncoder(encoder.encoder)
    result = mteb.evaluate(
        model, mteb_task, encode_kwargs={"batch_size": encoder.batch_size}, show_progress_bar=False, co2_tracker=False
    ).task_results[0]
    metric = mteb_task.metadata.main_score
    value = {"value": float(result.get_score()), "low": None, "high": None, "n": len(result.hf_subsets)}
    return {
        "task": task.name,
        "kind": task.kind,
        "language": None,
        "status": "done",
        "data": task.mteb_task,
        "split": ",".join(mteb_task.metadata.eval_splits),
        "metrics": {metric: value},
        "record": {"mteb": mteb.__version__, "n": "subsets", "revision": mteb_task.metadata.revision},
    }
