"""Classifies a sound with a trained checkpoint: the stock pipeline on an array, and ours on a file.

    python examples/classify_sound.py outputs/quickstart [sound.wav]

Ours takes a path, bytes, an array with its rate, stereo and any rate, and needs no FFmpeg. The stock pipeline takes a
mono array at the model's rate.
"""

import sys
from pathlib import Path

from transformers import pipeline

import supclap


SOUND = Path(__file__).parent / "cymbal_crash.wav"  # CC0, from sonic-pi-samples; its take is in the test split
LABELS = ["cymbal crash", "guitar", "footsteps on gravel", "glass breaking", "robot", "explosion"]
TEMPLATE = "the sound of {}"


def classify(checkpoint: str | Path, sound: str | Path = SOUND, labels: list[str] = LABELS) -> dict[str, list[dict]]:
    """The scores of both pipelines, best label first.

    Args:
        checkpoint: Folder or Hub id of a SupCLAP model.
        sound: The file to classify.
        labels: What it may be.
    """
    stock = pipeline("zero-shot-audio-classification", model=str(checkpoint))
    rate = stock.feature_extractor.sampling_rate
    array = supclap.load_waveform(sound, target_sampling_rate=rate).numpy()
    ours = supclap.pipeline(str(checkpoint))
    return {
        "stock pipeline, array": stock(array, candidate_labels=labels, hypothesis_template=TEMPLATE),
        "supclap.pipeline, file": ours(str(sound), candidate_labels=labels, hypothesis_template=TEMPLATE),
    }


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python examples/classify_sound.py CHECKPOINT [SOUND]")
    for name, scores in classify(*sys.argv[1:3]).items():
        print(f"{name}: " + ", ".join(f"{score['label']} {score['score']:.2f}" for score in scores))


if __name__ == "__main__":
    main()
