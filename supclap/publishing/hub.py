"""Uploads a checkpoint to the Hub: model, processor, code and card as one commit."""

import json
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from supclap.errors import CheckpointError, LicenseError, PushError, name_some
from supclap.files import CARD, CONFIG, MANIFEST, PROCESSOR, RECIPE, RESULTS, RUN, TRAINING_CURVES, read_json_object
from supclap.publishing.licenses import decide_license, stated_licenses
from supclap.publishing.model_card import MARKER, tower_licenses, training_licenses, write_card
from supclap.publishing.run_record import Facts


if TYPE_CHECKING:
    from huggingface_hub import CommitInfo

# Everything that `save_pretrained` of a model and a processor and a training run write for others to read, beside the
# code. Nothing else is uploaded: the optimizer's state, pickles, the radius that only training needs, training
# checkpoints, and whatever a user keeps in the same folder stay where they are.
PARTS = (
    *(CONFIG, "model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json"),
    *(PROCESSOR, "preprocessor_config.json", "chat_template.jinja"),
    *("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "bpe.codes", "tokenizer.model"),
    *("spiece.model", "sentencepiece.model", "sentencepiece.bpe.model", "spm.model", "spm_char.model"),
    *(RECIPE, RESULTS, RUN, MANIFEST, TRAINING_CURVES, CARD),
)
# The names of the code that travels with a checkpoint. A push deletes older files of these names from the repository.
CODE = ("*_supclap.py", "modeling_ced.py")


def push_checkpoint(
    folder: str | Path,
    repo_id: str,
    private: bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    message: str = "Upload SupCLAP model",
    license: str | None = None,
    token: str | None = None,
) -> "CommitInfo":
    """Uploads model, processor, code and card as one commit: the repository has all of it, or what it had before.

    Files that an older version of the model left in the repository go with the same commit; files of other kinds stay.
    Uploads that break are repeated by the Hub's client. After an error, the same call goes on: weights that arrived are
    not sent again, and a commit that arrived is not made again.

    Args:
        folder: A checkpoint: what a training run, `supclap convert`, or `save_pretrained` of model and processor wrote.
        repo_id: `"owner/name"`; made if it does not exist.
        private: Whether a new repository is private; the owner's default when omitted.
        revision: Branch to commit to, made if it does not exist; `main` when omitted.
        create_pr: Open a pull request instead of committing.
        message: Message of the commit.
        license: License on the card; that of the card in the folder, or see
            [`~supclap.publishing.licenses.decide_license`], when omitted.
        token: Token with write permission; the one of `hf auth login` or `HF_TOKEN` when omitted.

    Returns:
        The commit, with `commit_url` and `pr_url`.

    Raises:
        CheckpointError: The folder is no whole checkpoint; the message says what is missing.
        LicenseError: A part or the data is non-commercial, and the license, or the one that a README written by hand
            states, is not.
        PushError: The Hub refused, did not answer, or the connection broke; the message says what to do.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.errors import HTTPError  # the base of all errors of the HTTP library that the client uses

    folder = Path(folder)
    check_checkpoint(folder)
    _prepare_card(folder, repo_id, license)
    files = checkpoint_files(folder)
    left = sorted(file.name for file in folder.iterdir() if file.is_file() and file not in files)
    if left:
        print(f"Not uploaded, as they are no part of a checkpoint: {name_some(left)}", file=sys.stderr)
    api = HfApi(token=token)
    try:
        api.create_repo(repo_id, private=private, exist_ok=True)
        if revision not in (None, "main") and not revision.startswith("refs/") and not create_pr:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        names = {file.name for file in files}
        stale = [
            name
            for name in api.list_repo_files(repo_id, revision=revision)
            if name not in names and "/" not in name and any(fnmatch(name, pattern) for pattern in (*PARTS, *CODE))
        ]
        # Not upload_folder: newer clients split its upload into several commits, of which the last may fail.
        return api.create_commit(
            repo_id,
            [
                *(CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=_published(file)) for file in files),
                *(CommitOperationDelete(path_in_repo=name) for name in stale),
            ],
            commit_message=message,
            revision=revision,
            create_pr=create_pr,
        )
    except (HTTPError, OSError, RuntimeError) as error:
        # While it sends weights, the client wraps whatever goes wrong in a RuntimeError that names the file alone.
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        reason = " ".join(str(cause).split()) or type(cause).__name__
        raise PushError(f"{repo_id}: the upload failed ({reason}). {_advice(cause, create_pr)}") from error


def checkpoint_files(folder: Path) -> list[Path]:
    """The files of a checkpoint that belong onto the Hub, sorted: those that `PARTS` names, and the code.

    Raises:
        PushError: One of them is a link that leads out of the folder.
    """
    code = _code(folder)
    files = [
        file
        for file in sorted(folder.iterdir())
        if file.is_file() and (file.name in code or any(fnmatch(file.name, part) for part in PARTS))
    ]
    for file in files:
        if not file.resolve().is_relative_to(folder.resolve()):
            raise PushError(f"{file} is a link to {file.resolve()}, outside the checkpoint. Replace it by a copy.")
    return files


def check_checkpoint(folder: Path) -> None:
    """Raises a `CheckpointError` that names what a checkpoint lacks to be loaded by a stranger."""
    facts = Facts.read(folder)
    index = folder / "model.safetensors.index.json"
    weights = set(read_json_object(index)["weight_map"].values()) if index.exists() else {"model.safetensors"}
    missing = (weights | _code(folder)) - {file.name for file in checkpoint_files(folder)}
    if not facts.config.get("auto_map") or missing:
        raise CheckpointError(
            f"{folder} lacks {', '.join(sorted(missing)) or 'the code of the model'}. Save model and processor into one "
            "folder with save_pretrained; both bring their code."
        )


def _code(folder: Path) -> set[str]:
    """The names of the files of code that the model, the processor and the pipeline need."""
    from transformers.dynamic_module_utils import get_relative_import_files

    config, processor = (
        read_json_object(folder / name) if (folder / name).is_file() else {} for name in (CONFIG, PROCESSOR)
    )
    references = [
        *config.get("auto_map", {}).values(),
        *processor.get("auto_map", {}).values(),
        *(task["impl"] for task in config.get("custom_pipelines", {}).values()),
    ]
    names = {f"{reference.split('.')[0]}.py" for reference in references}
    for name in sorted(names):
        if (folder / name).is_file():
            try:
                names |= {Path(imported).name for imported in get_relative_import_files(folder / name)}
            except FileNotFoundError as error:  # the code imports a file that is not there
                names.add(Path(error.filename).name)
    return names


def _published(file: Path) -> Path | bytes:
    """The file or, of config.json, its content with no more than the last part of an encoder's absolute path.

    Such a path may tell who trained where. The folder keeps it, because the license of an encoder is looked up there.
    """
    if file.name != CONFIG:
        return file
    config = read_json_object(file)
    for tower in (config["text_config"], config["audio_config"]):
        path = Path(tower.get("_name_or_path") or "")
        if path.is_absolute():
            tower["_name_or_path"] = path.name
    return f"{json.dumps(config, indent=2, sort_keys=True)}\n".encode()


def _prepare_card(folder: Path, repo_id: str, license: str | None) -> None:
    """Writes our card anew, for `repo_id` and under the license of the old one. A README written by hand stays."""
    path = folder / CARD
    stated = stated_licenses(path) if path.exists() else []
    if not path.exists() or MARKER in path.read_text(encoding="utf-8", errors="replace"):
        write_card(folder, repo_id, license or next(iter(stated), None))
        return
    if license is not None:
        raise PushError(f"{path} was not written by `supclap card`. State the license {license!r} in it yourself.")
    facts = Facts.read(folder)
    for each in stated:
        try:
            decide_license(tower_licenses(facts), training_licenses(facts), wanted=each)
        except LicenseError as error:
            raise LicenseError(f"{path}: {error}") from error
    print(f"{path} was not written by `supclap card`; it is uploaded as it is.", file=sys.stderr)


def _advice(error: Exception, create_pr: bool) -> str:
    """What to do after an upload failed, in one sentence or two."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return "Log in with `hf auth login`, or set HF_TOKEN, with a token that may write to this repository."
    if status in (409, 412):
        return "Another commit came in between, so nothing was changed. Push again, or with --create-pr."
    if status is not None and status < 500 and status not in (408, 429):
        return "The Hub refused, so nothing was changed."
    if create_pr:
        return (
            "Whether the pull request was opened is not known: look at those of the repository before you push again."
        )
    return "The repository is whole, in its old or its new version. Push again: what has arrived is not sent twice."
