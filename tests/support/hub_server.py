"""A local server that speaks as much of the Hub's HTTP API as uploading and downloading a model takes.

Repositories live in memory; a commit is applied whole or not at all. Faults can be put before or behind a request.
"""

import base64
import hashlib
import json
import re
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlparse


LFS_SUFFIX = ".safetensors"


@dataclass
class Repo:
    private: bool
    # of each branch: the snapshots {path: content}, oldest first
    branches: dict[str, list[dict[str, bytes]]] = field(default_factory=lambda: {"main": [{}]})
    messages: list[str] = field(default_factory=list)
    pull_requests: int = 0

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.branches[self.branch(revision)][-1]

    def branch(self, revision: str) -> str | None:
        by_commit = {self.sha(name): name for name in self.branches}
        return revision if revision in self.branches else by_commit.get(revision)

    def sha(self, branch: str) -> str:
        return hashlib.sha1(f"{branch} {len(self.branches[branch])}".encode()).hexdigest()


@dataclass
class Fault:
    """What happens to the next `times` requests whose "METHOD path" contains `where`.

    `what` is a status, `"cut"` (the connection breaks while the request is read) or `"cut answer"` (it is carried out,
    but the answer never arrives).
    """

    where: str
    what: int | str
    times: int = 1


class HubServer:
    def __init__(self):
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.lock = threading.Lock()

    def asked(self, where: str) -> int:
        """How many requests that contain `where` came in."""
        return sum(where in request for request in self.requests)

    def take_fault(self, request: str) -> Fault | None:
        with self.lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault.times and fault.where in request:
                    fault.times -= 1
                    return fault
        return None


def oid(path: str, content: bytes) -> str:
    if path.endswith(LFS_SUFFIX):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, *args):
        pass

    def answer(self, content: bytes | dict | list = b"", status: int = 200, **headers: str):
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
            headers["Content-Type"] = "application/json"
        if getattr(self, "cut_answer", False):
            self.close_abruptly()
            return
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def error(self, status: int, code: str = "", message: str = ""):
        self.answer({"error": message}, status, X_Error_Code=code, X_Error_Message=message)

    def close_abruptly(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def handle_request(self):
        url = urlparse(self.path)
        self.query = parse_qs(url.query)
        fault = self.hub.take_fault(f"{self.command} {url.path}")
        length = int(self.headers.get("Content-Length") or 0)
        if fault and fault.what == "cut":
            self.rfile.read(length // 2)
            self.close_abruptly()
            return
        body = self.rfile.read(length)
        if fault and isinstance(fault.what, int):
            self.answer({"error": "on purpose"}, fault.what)
            return
        self.cut_answer = fault is not None
        for pattern, name in ROUTES:
            match = re.fullmatch(pattern, f"{self.command} {unquote(url.path)}")
            if match:
                with self.hub.lock:
                    getattr(self, name)(body, *match.groups())
                return
        self.error(404, "EntryNotFound", f"no route for {self.command} {self.path}")

    do_GET = do_HEAD = do_POST = do_PUT = handle_request

    @property
    def base(self) -> str:
        return f"http://{self.headers['Host']}"

    # ---- Routes ----

    def create_repo(self, body):
        wanted = json.loads(body)
        repo_id = f"{wanted['organization'] or 'me'}/{wanted['name']}"
        if repo_id in self.hub.repos:
            self.answer({"error": "You already created this model repo", "url": f"{self.base}/{repo_id}"}, 409)
            return
        self.hub.repos[repo_id] = Repo(private=wanted.get("visibility") == "private" or bool(wanted.get("private")))
        self.answer({"url": f"{self.base}/{repo_id}", "name": repo_id})

    def create_branch(self, body, repo_id, branch):
        repo = self.hub.repos[repo_id]
        if branch in repo.branches:
            self.error(409, message="Reference already exists")
            return
        repo.branches[branch] = list(repo.branches["main"])
        self.answer({})

    def validate(self, body):
        self.answer({"errors": [], "warnings": []})

    def list_tree(self, body, repo_id, revision, folder=""):
        repo = self.hub.repos[repo_id]
        if repo.branch(revision) is None:
            self.error(404, "RevisionNotFound", "Invalid rev id")
        elif folder:
            self.error(404, "EntryNotFound", "no such folder")
        else:
            files = repo.files(revision).items()
            self.answer([{"type": "file", "path": p, "size": len(c), "oid": oid(p, c)} for p, c in files])

    def info(self, body, repo_id, revision="main"):
        repo = self.hub.repos[repo_id]
        siblings = [{"rfilename": path} for path in repo.files(revision)]
        sha = repo.sha(repo.branch(revision))
        self.answer({"id": repo_id, "sha": sha, "private": repo.private, "siblings": siblings})

    def preupload(self, body, repo_id, revision):
        there = self.hub.repos[repo_id].files(revision)
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(LFS_SUFFIX) else "regular",
                "shouldIgnore": False,
                "oid": oid(file["path"], there[file["path"]]) if file["path"] in there else None,
            }
            for file in json.loads(body)["files"]
        ]
        self.answer({"files": files})

    def lfs_batch(self, body, repo_id):
        objects = []
        for item in json.loads(body)["objects"]:
            missing = item["oid"] not in self.hub.objects
            actions = {"upload": {"href": f"{self.base}/lfs/{item['oid']}"}}
            objects.append({**item, **({"actions": actions} if missing else {})})
        self.answer({"transfer": "basic", "objects": objects})

    def lfs_put(self, body, sha256):
        if hashlib.sha256(body).hexdigest() != sha256:
            self.error(400, message="wrong content")
            return
        self.hub.objects[sha256] = body
        self.answer()

    def commit(self, body, repo_id, revision):
        repo = self.hub.repos[repo_id]
        files, message = dict(repo.files(revision)), ""
        for line in body.decode().splitlines():
            key, value = (json.loads(line)[part] for part in ("key", "value"))
            if key == "header":
                message = value["summary"]
            elif key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            else:
                assert key == "deletedFile"
                del files[value["path"]]
        answer = {}
        branch = revision
        if self.query.get("create_pr"):
            repo.pull_requests += 1
            branch = f"refs/pr/{repo.pull_requests}"
            repo.branches[branch] = list(repo.branches[revision])
            answer["pullRequestUrl"] = f"{self.base}/{repo_id}/discussions/{repo.pull_requests}"
        repo.branches[branch].append(files)
        repo.messages.append(message)
        sha = repo.sha(branch)
        self.answer({"commitUrl": f"{self.base}/{repo_id}/commit/{sha}", "commitOid": sha, **answer})

    def resolve(self, body, repo_id, revision, path):
        repo = self.hub.repos[repo_id]
        content = repo.files(revision).get(path)
        sha = repo.sha(repo.branch(revision))
        if content is None:
            self.answer({}, 404, X_Error_Code="EntryNotFound", X_Repo_Commit=sha)
            return
        self.answer(content, ETag=f'"{oid(path, content)}"', X_Repo_Commit=sha)


ROUTES = [
    (r"POST /api/repos/create", "create_repo"),
    (r"POST /api/validate-yaml", "validate"),
    (r"POST /api/models/([^/]+/[^/]+)/branch/(.+)", "create_branch"),
    (r"GET /api/models/([^/]+/[^/]+)/tree/(refs/pr/\d+|[^/]+)", "list_tree"),
    (r"GET /api/models/([^/]+/[^/]+)/tree/(refs/pr/\d+|[^/]+)/(.+)", "list_tree"),
    (r"GET /api/models/([^/]+/[^/]+)", "info"),
    (r"GET /api/models/([^/]+/[^/]+)/revision/(.+)", "info"),
    (r"POST /api/models/([^/]+/[^/]+)/preupload/(.+)", "preupload"),
    (r"POST /([^/]+/[^/]+)\.git/info/lfs/objects/batch", "lfs_batch"),
    (r"PUT /lfs/([0-9a-f]+)", "lfs_put"),
    (r"POST /api/models/([^/]+/[^/]+)/commit/(.+)", "commit"),
    (r"(?:GET|HEAD) /([^/]+/[^/]+)/resolve/(refs/pr/\d+|[^/]+)/(.+)", "resolve"),
]


@contextmanager
def running_hub():
    """The server and its address, for the length of a `with` block."""
    hub = HubServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
