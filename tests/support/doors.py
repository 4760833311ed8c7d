"""The ways to open a saved folder, as programs for a process of their own: see `through_doors`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import soundfile


LABELS = ["a dog barks", "rain", "a violin"]
# One process with the package and one that cannot import it, because starting them is what takes the time.
WITH_PACKAGE = """
import supclap
trust = {}
"""
WITHOUT_PACKAGE = """
import sys
blocked = ("supclap", "modeling_supclap", "processing_supclap")
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Blocker())
trust = {"trust_remote_code": True}
"""
BOTH = """
import json, os, sys
import numpy as np
from transformers import AutoModel, AutoProcessor, pipeline
paths = json.loads(sys.argv[1])
folder, labels = paths["folder"], paths["labels"]
clip = np.load(paths["clip.npy"])
asked = {"candidate_labels": labels, "hypothesis_template": "{}"}
results = {}

def scores(classify, audio):
    found = {entry["label"]: entry["score"] for entry in classify(audio, **asked)}
    return [found[label] for label in labels]

def auto_classes(folder):
    model = AutoModel.from_pretrained(folder, **trust).eval()
    processor = AutoProcessor.from_pretrained(folder, **trust)
    inputs = processor(text=labels, audio=[clip], sampling_rate=16000, return_tensors="pt")
    return model, processor, model(**inputs).logits_per_audio.softmax(-1)[0].tolist()

with_rate = {"array": clip, "sampling_rate": 16000}
own_task = "supclap-zero-shot-audio-classification"
classify = pipeline(own_task, model=folder, trust_remote_code=True)
results["own task"] = scores(classify, with_rate)
classify.save_pretrained(paths["by pipeline"])
results["saved by the pipeline, own task"] = scores(
    pipeline(own_task, model=paths["by pipeline"], trust_remote_code=True), with_rate
)
results["stock pipeline"] = scores(pipeline("zero-shot-audio-classification", model=folder, **trust), clip)
results["saved by the pipeline"] = auto_classes(paths["by pipeline"])[2]
model, processor, results["Auto classes"] = auto_classes(folder)
try:
    from sentence_transformers import SentenceTransformer
except ImportError:
    pass
else:
    encoder = SentenceTransformer(folder, device="cpu", **trust)
    results["SentenceTransformer"] = {
        "text": encoder.encode(labels).tolist(),
        "array": encoder.encode([clip]).tolist(),
        "dict": encoder.encode([with_rate]).tolist(),
        "file": encoder.encode([paths["clip.wav"]]).tolist(),
        "another rate": encoder.encode([{"array": clip, "sampling_rate": 44100}]).tolist(),
        "dimension": encoder.get_embedding_dimension(),
        "modalities": encoder.modalities,
    }
"""
ONLY_WITH_PACKAGE = """
ours = supclap.SupClapZeroShotAudioClassificationPipeline
results["supclap.pipeline"] = scores(supclap.pipeline(folder), with_rate)
given = pipeline("zero-shot-audio-classification", model=folder, pipeline_class=ours)
assert type(given) is ours
results["pipeline_class"] = scores(given, with_rate)
"""
ONLY_WITHOUT_PACKAGE = """
again = paths["again"]
model.save_pretrained(again)
processor.save_pretrained(again)
results["saved again"] = auto_classes(again)[2]
results["saved again, own task"] = scores(pipeline(own_task, model=again, trust_remote_code=True), with_rate)

poisoned, results["refused"] = paths["poisoned"], []
for opens in (
    lambda: AutoModel.from_pretrained(poisoned, trust_remote_code=False),
    lambda: AutoProcessor.from_pretrained(poisoned, trust_remote_code=False),
    lambda: pipeline("zero-shot-audio-classification", model=poisoned, trust_remote_code=False),
    lambda: pipeline(own_task, model=poisoned, trust_remote_code=False),
):
    try:
        opens()
    except ValueError as error:
        results["refused"].append("trust_remote_code" in str(error))
"""


def poison(folder: Path, marker: Path) -> None:
    """Makes every code file of a checkpoint leave a trace when it runs."""
    for file in folder.glob("*.py"):
        file.write_text(f"open({str(marker)!r}, 'w').close()\n" + file.read_text())


def through_doors(program: str, checkpoint: Path, folder: Path, clip: np.ndarray) -> dict:
    """Runs a program made of the pieces above on a checkpoint, with its files in `folder`, and returns its results."""
    np.save(folder / "clip.npy", clip)
    soundfile.write(folder / "clip.wav", clip, 16000, subtype="FLOAT")
    shutil.copytree(checkpoint, folder / "poisoned")
    poison(folder / "poisoned", folder / "code-ran")
    names = ("clip.npy", "clip.wav", "again", "by pipeline", "poisoned")
    paths = {"folder": str(checkpoint), "labels": LABELS, **{name: str(folder / name) for name in names}}
    environment = {**os.environ, "HF_MODULES_CACHE": str(folder / "modules")}
    if program.startswith(WITHOUT_PACKAGE):
        environment["PYTHONPATH"] = ""
    done = subprocess.run(
        [sys.executable, "-c", program + "\nprint('RESULT', json.dumps(results))", json.dumps(paths)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder if program.startswith(WITHOUT_PACKAGE) else None,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.split("RESULT")[1]) | {"poisoned code ran": (folder / "code-ran").exists()}
