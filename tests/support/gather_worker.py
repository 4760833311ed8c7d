"""Cases of the gather test, and one rank of it: `python gather_worker.py RANK RANKS FOLDER`, as many ranks as there are sizes, gloo over a file.

`run_case` without a process group is the single process with the full batch.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from supclap.losses import PaperReadings, SupClapLoss


N, INPUTS, DIM = 8, 5, 6
SIZES = {"2-even": (4, 4), "2-uneven": (3, 5), "4-even": (2, 2, 2, 2), "4-uneven": (3, 1, 2, 2)}
IDS = [0, 1, 2, 3, 1, 4, 3, 5]  # clips 1 and 3 occur on two ranks under every split

TEXT_SUPPORT = PaperReadings(bi_mode="text_support")

# name: (rows of each rank, options of the criterion, ids given)
CASES = {
    f"{objective}-{name}-{split}": (sizes, {"objective": objective, **options}, ids)
    for objective in ("infonce", "siglip")
    for name, options, ids in (
        ("plain", {"svr": None}, False),
        ("dynamic", {"svr": "dynamic", "batch_size": N}, False),
        ("dynamic-ids", {"svr": "dynamic", "batch_size": N}, True),
        ("summary-uni", {"svr": "dynamic", "radius_predictor": "summary", "svr_direction": "uni"}, False),
        ("static", {"svr": "static"}, False),
        ("text_support", {"svr": "dynamic", "batch_size": N, "readings": TEXT_SUPPORT}, True),
        ("chunked", {"svr": "dynamic", "batch_size": N, "loss_chunk_size": 2}, True),
    )
    for split, sizes in SIZES.items()
    if not (objective == "siglip" and name.startswith("text_support"))
}


class Toy(nn.Module):
    """A linear dual encoder with its objective."""

    def __init__(self, options):
        super().__init__()
        torch.manual_seed(0)
        self.audio, self.text = nn.Linear(INPUTS, DIM), nn.Linear(INPUTS, DIM)
        self.log_scale = nn.Parameter(torch.tensor([2.0]))
        self.bias = nn.Parameter(torch.tensor([-2.0])) if options["objective"] == "siglip" else None
        self.criterion = SupClapLoss(radius_init=0.8, **options)
        for name, parameter in self.criterion.named_parameters():
            if name.endswith("mlp.4.weight"):
                nn.init.normal_(parameter, std=0.2)
        self.double()

    def forward(self, audio, text, ids):
        audio = nn.functional.normalize(self.audio(audio), dim=-1)
        text = nn.functional.normalize(self.text(text), dim=-1)
        output = self.criterion(audio, text, self.log_scale.exp(), self.bias, ids)
        return output.loss, output.parts | output.diagnostics


def run_case(name):
    """Return values and gradients of a case on this rank, or on the full batch without a process group."""
    sizes, options, use_ids = CASES[name]
    generator = torch.Generator().manual_seed(1)
    audio, text = torch.randn(2, N, INPUTS, generator=generator, dtype=torch.float64)
    ids = torch.tensor(IDS)
    model = Toy(options)
    wrapped = model
    if dist.is_initialized():
        audio, text, ids = (x.split(sizes)[dist.get_rank()] for x in (audio, text, ids))
        wrapped = DistributedDataParallel(model)
    loss, values = wrapped(audio, text, ids if use_ids else None)
    loss.backward()
    return {"values": {"loss": loss.detach()} | values, "gradients": {k: p.grad for k, p in model.named_parameters()}}


if __name__ == "__main__":
    rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=ranks)
    cases = [name for name, (sizes, *_) in CASES.items() if len(sizes) == ranks]
    torch.save({name: run_case(name) for name in cases}, folder / f"{rank}.pt")
    dist.destroy_process_group()
