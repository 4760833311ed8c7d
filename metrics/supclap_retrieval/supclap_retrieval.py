"""Audio-text retrieval metrics as an `evaluate` module: a thin layer over `supclap.evaluation.retrieval_metrics`.

Example:
    metric = evaluate.load("./metrics/supclap_retrieval")
    metric.compute(predictions=text_embeds, references=text_to_audio, audio_embeds=audio_embeds)
"""

import datasets
import evaluate

from supclap.evaluation.retrieval import DEFAULT_KS, DEFAULT_PROTOCOL, retrieval_metrics


_DESCRIPTION = "Recall@k, mAP@10 and median rank of audio-text retrieval, in both directions, ties counted as errors."

_INPUTS_DESCRIPTION = """
Args:
    predictions: (n_text, D) caption embeddings, stored as float32; may be added in batches.
    references: (n_text,) index of each caption's clip, a row of `audio_embeds`.
    audio_embeds: (n_audio, D) clip embeddings, given to `compute`.
    ks: cut-offs of recall; (1, 5, 10) by default.
    pool_size: number of clips in a pool, for retrieval within disjoint pools; all clips are in one pool by default.
    texts: the text of each caption, in the order of the predictions. Equal texts are one item; without the texts, captions
        with exactly equal embeddings are.
    protocol: "text" (the default), or "index", in which each caption belongs to one clip only.
Returns:
    The dictionary of `supclap.evaluation.retrieval_metrics`; rates are fractions from 0 to 1.
"""


class SupClapRetrieval(evaluate.Metric):
    """Each caption is a query and so a row; the gallery of clips is an argument of `compute`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS_DESCRIPTION,
            features=datasets.Features(
                {"predictions": datasets.Sequence(datasets.Value("float32")), "references": datasets.Value("int64")}
            ),
        )

    def _compute(
        self,
        predictions,
        references,
        audio_embeds,
        ks=DEFAULT_KS,
        pool_size=None,
        texts=None,
        protocol=DEFAULT_PROTOCOL,
    ) -> dict[str, float | int]:
        return retrieval_metrics(audio_embeds, predictions, references, ks, pool_size, texts=texts, protocol=protocol)
