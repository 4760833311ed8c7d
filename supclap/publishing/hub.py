"""A checkpoint to the Hub as one commit, over a connection that may break, and `supclap push`."""

import json
import sys
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from supclap.errors import LicenseError, PushError
from supclap.files import CARD
from supclap.publishing.card_facts import Facts, read_json
from supclap.publishing.licenses import UNKNOWN, normalise_licence, propagate, stated_licences
from supclap.publishing.model_card import MARKER, tower_licences, training_licences, write_card


if TYPE_CHECKING:
    from huggingface_hub import CommitInfo, HfApi

# What a checkpoint consists of. Pickles (training_args.bin, optimizer.pt) are not among it, nor is what starts with an
# underscore (the radius, which only training needs), nor sub-folders (the checkpoints of the run).
UPLOADED = ("*.json", "*.safetensors", "*.py", "*.txt", "*.model", "*.jinja", "*.png", CARD)
NOT_UPLOADED = ("_*", ".*", "trainer_state.json")
# An older model may have other weights (more shards, a pickle) or code; beside the new ones they would be loaded.
REPLACED = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.py")
RETRIES = 5
MAX_WAIT = 60.0
IN_THE_WAY = (409, 412)  # another commit, at the same time or since
RETRIED_STATUS = (*IN_THE_WAY, 408, 429, 500, 502, 503, 504)
# The client has the card's metadata checked before it sends a commit; asking that twice does no harm.
HARMLESS = "/api/validate-yaml"

T = TypeVar("T")


def push_checkpoint(
    folder: str | Path,
    repo_id: str,
    private: bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    message: str = "Upload SupCLAP model",
    licence: str | None = None,
    token: str | None = None,
    api: "HfApi | None" = None,
) -> "CommitInfo":
    """Uploads model, processor, code and card as one commit: the repository has all of it, or what it had before.

    A request that breaks, times out (408), is turned away (429, honouring Retry-After), or meets a server error or another
    commit (409, 412) is sent again up to five times. Files that arrived are not sent twice, and a commit whose answer
    got lost is not repeated: the Hub is asked first what it holds.

    Args:
        folder: A checkpoint: what a training run, `supclap convert`, or `save_pretrained` of model and processor wrote.
        repo_id: `"owner/name"`; made if it does not exist.
        private: Whether a new repository is private; the owner's default when omitted.
        revision: Branch to commit to, made if it does not exist; `main` when omitted.
        create_pr: Open a pull request instead of committing.
        message: Message of the commit.
        licence: Licence on the card; see [`~supclap.publishing.model_card.write_card`].
        token: Token with write permission; the one of `hf auth login` or `HF_TOKEN` when omitted.
        api: A client of its own endpoint.

    Returns:
        The commit, with `commit_url` and `pr_url`.

    Raises:
        FileNotFoundError: The folder is no whole checkpoint; the message says what is missing.
        LicenseError: The licence, also one that a README of others states, is more liberal than a part or the data
            allows.
        PushError: The connection broke, the Hub did not answer as it should or another commit was in the way every time,
            or the answer to a pull request got lost.
        HfHubHTTPError: The Hub refused.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    folder = Path(folder)
    check_checkpoint(folder)
    _write_own_card(folder, repo_id, licence)
    files = checkpoint_files(folder)
    api = api or HfApi(token=token)
    branch = revision or "main"
    _retried(lambda: api.create_repo(repo_id, private=private, exist_ok=True), f"creating {repo_id}")
    if revision is not None and revision != "main" and not revision.startswith("refs/") and not create_pr:
        _retried(lambda: api.create_branch(repo_id, branch=revision, exist_ok=True), f"creating the branch {revision}")

    def upload() -> "list[CommitOperationAdd | CommitOperationDelete]":
        # Built anew for each commit, so that the client asks again what the Hub already holds.
        there = api.list_repo_files(repo_id, revision=branch)
        stale = [
            name
            for name in there
            if "/" not in name and any(fnmatch(name, pattern) for pattern in REPLACED) and (folder / name) not in files
        ]
        added = [CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=_published(file)) for file in files]
        api.preupload_lfs_files(repo_id, added, revision=revision, create_pr=create_pr, free_memory=False)
        return [*added, *(CommitOperationDelete(path_in_repo=name) for name in stale)]

    def commit() -> "CommitInfo":
        operations = _retried(upload, f"the upload to {repo_id}")
        return api.create_commit(repo_id, operations, commit_message=message, revision=revision, create_pr=create_pr)

    # A second pull request would be one too many, so its request is sent again only when the Hub turned it away.
    return _retried(commit, f"the commit to {repo_id}", once=create_pr)


def checkpoint_files(folder: Path) -> list[Path]:
    """The files of a checkpoint that belong onto the Hub, sorted.

    Raises:
        PushError: One of them is a link that leads out of the folder.
    """
    files = []
    for file in sorted(folder.iterdir()):
        wanted = any(fnmatch(file.name, pattern) for pattern in UPLOADED)
        if not file.is_file() or not wanted or any(fnmatch(file.name, pattern) for pattern in NOT_UPLOADED):
            continue
        if not file.resolve().is_relative_to(folder.resolve()):
            raise PushError(f"{file} is a link to {file.resolve()}, outside the checkpoint. Replace it by a copy.")
        files.append(file)
    return files


def _published(file: Path) -> Path | bytes:
    """The file, or the content of config.json with the last part alone of an encoder's absolute path.

    Such a path may tell who trained where. The folder keeps it: the licence of an encoder is looked up there.
    """
    if file.name != "config.json":
        return file
    config = read_json(file)
    for tower in (config["text_config"], config["audio_config"]):
        path = Path(tower.get("_name_or_path") or "")
        if path.is_absolute():
            tower["_name_or_path"] = path.name
    return f"{json.dumps(config, indent=2, sort_keys=True)}\n".encode()


def check_checkpoint(folder: Path) -> None:
    """Raises a `FileNotFoundError` that names what a checkpoint lacks to be loaded by a stranger."""
    facts = Facts.read(folder)
    index = folder / "model.safetensors.index.json"
    weights = {"model.safetensors"}
    if index.exists():
        weights = set(read_json(index)["weight_map"].values())
    references = [
        *facts.config.get("auto_map", {}).values(),
        *facts.processor.get("auto_map", {}).values(),
        *(task["impl"] for task in facts.config.get("custom_pipelines", {}).values()),
    ]
    code = {f"{reference.split('.')[0]}.py" for reference in references}
    for name in sorted(weights | code):
        if Path(name).name != name:
            raise ValueError(f"{folder} refers to {name!r}, which leads out of it. Save the model again.")
    missing = sorted(name for name in weights | code if not (folder / name).is_file())
    if not facts.config.get("auto_map") or missing:
        raise FileNotFoundError(
            f"{folder} lacks {', '.join(missing) or 'the code of the model'}. Save model and processor into one folder "
            "with save_pretrained; both bring their code."
        )


def _write_own_card(folder: Path, repo_id: str, licence: str | None) -> None:
    """A card whose snippets load `repo_id`, with the licence of the card that is there; a README of others stays.

    Raises:
        LicenseError: The licence, also one that a README of others states, is more liberal than a part or the data
            allows.
    """
    from huggingface_hub import ModelCard

    path = folder / CARD
    if path.exists():
        if MARKER not in path.read_text(encoding="utf-8", errors="replace"):
            if licence is not None:
                raise ValueError(f"{path} is no card of `supclap card`, so it states its licence itself.")
            _check_stated_licences(path)
            print(f"{path} was not written by `supclap card`; it is uploaded as it is.", file=sys.stderr)
            return
        stated = ModelCard.load(path, ignore_metadata_errors=True).data.license
        licence = licence or (None if stated == "other" else stated)
    write_card(folder, repo_id, licence)


def _check_stated_licences(card: Path) -> None:
    facts = Facts.read(card.parent)
    for stated in stated_licences(card):
        if normalise_licence(stated) == UNKNOWN:
            continue
        try:
            propagate(tower_licences(facts), training_licences(facts), wanted=stated)
        except LicenseError as error:
            raise LicenseError(f"{card}: {error}") from error


# ---- Sending again ----


def _retried(send: Callable[[], T], what: str, once: bool = False) -> T:
    """The result of `send`, tried again where that may help.

    Args:
        send: Sends requests; must do no harm when repeated.
        what: Names it in messages.
        once: Sending it twice would do harm, so only a refusal that says to come back leads to another try.

    Raises:
        PushError: It went wrong every time, or once where it must not be sent twice.
        HfHubHTTPError: The Hub refused.
    """
    from huggingface_hub.errors import HfHubHTTPError

    for attempt in range(RETRIES + 1):
        try:
            return _unwrapped(send)
        except HfHubHTTPError as error:
            status, reason = error.response.status_code, str(error).splitlines()[0]
            if status not in RETRIED_STATUS or (once and status not in (*IN_THE_WAY, 429)):
                raise
            if attempt == RETRIES:
                if status in IN_THE_WAY:
                    raise PushError(
                        f"{what}: another commit was in the way {attempt + 1} times ({reason}). Nothing was changed. Try "
                        "again later, or push to a --revision of its own or with --create-pr."
                    ) from error
                raise PushError(
                    f"{what}: the Hub turned it away {attempt + 1} times ({reason}). What had arrived is kept: push again."
                ) from error
            wait = _retry_after(error.response.headers.get("Retry-After"))
        except _transport_errors() as error:
            if once and not _address(error).endswith(HARMLESS):
                raise PushError(
                    f"{what}: the connection broke ({error}), and whether the pull request was opened is not known. Look "
                    "at the pull requests of the repository before you push again."
                ) from error
            if attempt == RETRIES:
                raise PushError(
                    f"{what}: the connection broke {attempt + 1} times ({error}). What had arrived is kept: push again."
                ) from error
            wait, reason = None, f"the connection broke ({error})"
        wait = min(2.0**attempt, MAX_WAIT) if wait is None else wait
        print(f"{what}: {reason}; try {attempt + 2} of {RETRIES + 1} in {wait:.0f} s.", file=sys.stderr)
        time.sleep(wait)
    raise AssertionError("unreachable")


def _unwrapped(send: Callable[[], T]) -> T:
    """The result of `send`; an error of the connection or the Hub comes without the one that names the file."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return send()
    except RuntimeError as error:  # what the client makes of all that goes wrong while it sends a file
        if isinstance(error.__cause__, (HfHubHTTPError, _transport_errors())):
            raise error.__cause__ from None
        raise


def _address(error: Exception) -> str:
    """Where the request of a transport error went, as far as it knows."""
    try:
        return str(error.request.url)
    except (AttributeError, RuntimeError):  # httpx raises the second where there is none
        return ""


def _transport_errors() -> type[Exception]:
    """The class of broken connections and time-outs, of whichever HTTP library the Hub's client uses."""
    from importlib import import_module

    from huggingface_hub.errors import HfHubHTTPError

    base = next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
    return import_module(base.__module__.split(".")[0]).TransportError


def _retry_after(value: str | None) -> float | None:
    """Seconds to wait from a Retry-After header, which holds seconds or a date; `None` where it says nothing."""
    if value is None:
        return None
    try:
        return max(float(value), 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except ValueError:
        return None
