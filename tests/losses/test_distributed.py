"""Two and four gloo processes under DDP against one process with the full batch, in float64."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from supclap.losses import gather_columns
from support import gather_worker
from support.paths import ROOT


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request, tmp_path_factory):
    """Results of all cases of a number of ranks, one dictionary a rank."""
    folder = tmp_path_factory.mktemp("gather")
    worker = Path(gather_worker.__file__)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(worker), str(rank), str(request.param), str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(request.param)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(request.param)]


def test_ranks_give_the_loss_and_diagnostics_of_one_process_with_the_full_batch(ranks):
    for case in ranks[0]:
        expected = gather_worker.run_case(case)["values"]
        got = {name: sum(rank[case]["values"][name] for rank in ranks) / len(ranks) for name in expected}
        torch.testing.assert_close(
            got, expected, rtol=1e-12, atol=1e-12, msg=lambda text, case=case: f"{case}: {text}"
        )


def test_ranks_give_every_gradient_of_one_process_with_the_full_batch(ranks):
    for case in ranks[0]:
        expected = gather_worker.run_case(case)["gradients"]
        assert all(gradient.abs().sum() > 0 for gradient in expected.values())
        for rank in ranks:
            got = rank[case]["gradients"]
            torch.testing.assert_close(
                got, expected, rtol=1e-10, atol=1e-12, msg=lambda text, case=case: f"{case}: {text}"
            )


def test_without_a_process_group_the_rows_are_the_columns():
    audio, text = torch.randn(3, 4), torch.randn(3, 4)
    columns = gather_columns(audio, text, torch.tensor([5, 6, 5]))
    assert columns.audio is audio
    assert columns.text is text
    assert columns.sizes is None
    assert columns.weight == 1
    assert columns.own.tolist() == [0, 1, 2]
    assert columns.same_clip().tolist() == [[True, False, True], [False, True, False], [True, False, True]]
