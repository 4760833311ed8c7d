"""Forward pass of CED-Base against the published implementation: ratios of times measured in turns, in one run.

    git clone https://github.com/jimbozhang/hf_transformers_custom_model_ced peer
    python benchmarks/ced_forward.py --peer peer --threads 2

Both get the same random weights and the same spectrograms, 8 clips of 10 s, or of 2-10 s. The peer knows no masks: its
mixed clips are padded to the longest one, as its feature extractor does.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from supclap import CedConfig, CedModel


def load_peer(checkout: Path, ours: CedModel) -> torch.nn.Module:
    """The published encoder with our weights."""
    sys.path.insert(0, str(checkout))
    from ced_model.configuration_ced import CedConfig as PeerConfig
    from ced_model.modeling_ced import CedModel as PeerModel

    peer = PeerModel(PeerConfig(name="ced-base", outputdim=1))  # at 527 classes it asks the network for their names
    peer.load_state_dict(ours.state_dict())
    return peer.eval()


def measure(runs: dict[str, Callable], repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    """Fastest of `repeats` runs of each in seconds, in turns, so that what else the machine does hits all alike."""
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            start = clock()
            run()
            best[name] = min(best[name], clock() - start)
    return best


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="checkout of the published implementation")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--processor-time", action="store_true", help="count that instead of seconds, on a machine that others use"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    ours = CedModel(CedConfig()).eval()
    ours.set_input_statistics(torch.full((64,), -40.0), torch.full((64,), 300.0))
    peer = load_peer(arguments.peer, ours)
    half = CedModel(CedConfig()).eval()
    half.load_state_dict(ours.state_dict())
    half.bfloat16()
    half.init_bn.float()

    clips = torch.randn(8, 1001, 64) * 15 - 40
    lengths = torch.linspace(201, 1001, 8).long()
    mask = (torch.arange(1001) < lengths[:, None]).long()
    mixed = clips * mask[..., None]
    swapped, swapped_mixed = clips.transpose(1, 2).contiguous(), mixed.transpose(1, 2).contiguous()

    expected = peer(swapped).logits.mean(1)
    embeds, embeds_half = ours(clips).pooler_output, half(clips).pooler_output.float()
    alone = torch.cat([peer(clip[None, :, :length]).logits.mean(1) for clip, length in zip(swapped, lengths)])
    embeds_mixed = ours(mixed, mask).pooler_output
    print(f"largest difference from the peer, float32: {(embeds - expected).abs().max():.1e}")
    print(f"  mixed clips, the peer one at a time: {(embeds_mixed - alone).abs().max():.1e}")
    cosine = torch.nn.functional.cosine_similarity(embeds_half, expected)
    print(f"bfloat16: largest difference {(embeds_half - expected).abs().max():.1e}, lowest cosine {cosine.min():.6f}")

    best = measure(
        {
            "peer": lambda: peer(swapped),
            "float32": lambda: ours(clips),
            "bfloat16": lambda: half(clips),
            "peer, mixed": lambda: peer(swapped_mixed),
            "float32, mixed": lambda: ours(mixed, mask),
        },
        arguments.repeats,
        time.process_time if arguments.processor_time else time.perf_counter,
    )
    for name, against in (("float32", "peer"), ("bfloat16", "peer"), ("float32, mixed", "peer, mixed")):
        print(f"{name}: {best[against] / best[name]:.2f} times as fast as the {against}")


if __name__ == "__main__":
    main()
