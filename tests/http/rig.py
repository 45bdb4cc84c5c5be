# SPDX-License-Identifier: MIT
"""mimeod with tinycalc, mimeo-http before it, and HTTP clients; tests speak TAP.

tinycalc answers "count 97 3\\n" with "97 98 99". Its tokenizer (tests/data/byte-tokenizer) has a token for each
byte, the begin token 1 and the end token 2.
"""
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

PATIENCE = 60  # seconds, before something is called hung
SOURCE = pathlib.Path(os.environ.get("MIMEO_SOURCE", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("MIMEO_BUILD", SOURCE / "build-test"))
DEVICE = os.environ.get("MIMEO_DEVICE") or "cpu"
PROGRAM = os.environ.get("MIMEO_HTTP", str(BUILD / "daemon" / "mimeo-http"))
KEY = "sk-test-0123456789abcdef"


def eventually(condition, what):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(f"never: {what}")


class Process:
    """A program with a log, which ends with this one."""

    def __init__(self, log):
        self.log_path, self.process = log, None

    def start(self, argv, env=None, preexec=None, pass_fds=()):
        def child():
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            import ctypes
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if preexec:
                preexec()

        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                            env={**os.environ, **(env or {})}, preexec_fn=child,
                                            pass_fds=pass_fds)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self):
        return self.process.wait(PATIENCE)

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def n_fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


class Daemon(Process):
    """mimeod. With hold(), no step ends until release()."""

    def __init__(self, folder, options=(), model=None):
        super().__init__(folder / "mimeod.log")
        self.socket, self.hold_path = folder / "m.sock", folder / "hold"
        self.model = model or folder / "tinycalc"
        self.options = list(options)
        if not model:
            self.model.mkdir()
            for origin in ("examples/models/tinycalc", "tests/data/byte-tokenizer"):
                for path in (SOURCE / origin).iterdir():
                    (self.model / path.name).symlink_to(path)

    def start(self):
        super().start([str(BUILD / "daemon" / "mimeod"), "--socket", str(self.socket), "--model",
                       f"{self.model.name}={self.model}", "--device", DEVICE, "--capture-sizes", "1,2,4,8",
                       "--kv-pages", "512", *self.options],
                      env={"MIMEO_CPU_HOLD": f"sample:{self.hold_path}"})

    def ctl(self, *arguments):
        return subprocess.run([str(BUILD / "daemon" / "mimeoctl"), "--socket", str(self.socket), *arguments],
                              capture_output=True, text=True, timeout=PATIENCE).stdout

    def metric(self, name):
        return metric_of(self.ctl("metrics"), name)

    def await_metric(self, name, value):
        eventually(lambda: self.metric(name) == value, f"{name} is {value}")

    def hold(self):
        self.hold_path.touch()

    def release(self):
        self.hold_path.unlink(missing_ok=True)


def metric_of(text, name):
    match = re.search(rf"^{re.escape(name)} ([0-9.e+-]+)$", text, re.MULTILINE)
    # A counter with labels appears with its first event.
    assert match or "{" in name, f"no metric {name}"
    return float(match.group(1)) if match else 0.0


class Reply:
    def __init__(self, response):
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    def json(self):
        return json.loads(self.body)

    def error(self):
        return self.json()["error"]

    def events(self):
        """The objects of a stream of server-sent events, which must end as OpenAI's do."""
        lines = [line for line in self.body.decode().split("\n\n") if line]
        assert lines[-1] == "data: [DONE]", lines[-1:]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(self.path)


class Server(Process):
    """mimeo-http on a Unix socket and on TCP."""

    def __init__(self, folder, daemon, options=()):
        super().__init__(folder / "mimeo-http.log")
        self.folder, self.daemon = folder, daemon
        self.path, self.keys = folder / "h.sock", folder / "keys"
        self.options, self.port = list(options), None

    def start(self, ready=True, preexec=None):
        if not self.keys.exists():
            self.keys.write_text(f"# test\n{KEY} tests\n")
            self.keys.chmod(0o600)
        n = len(self.log()) if self.log_path.exists() else 0
        super().start([PROGRAM, "--socket", str(self.daemon.socket), "--listen", f"unix:{self.path}",
                       "--listen", "127.0.0.1:0", "--keys", str(self.keys), *self.options], preexec=preexec)
        eventually(lambda: self.process.poll() is not None or "listening on 127" in self.log()[n:], "it listens")
        found = re.search(r"listening on 127\.0\.0\.1:(\d+)", self.log()[n:])
        assert found, self.log()
        self.port = int(found.group(1))
        if ready:
            eventually(lambda: self.get("/health").status == 200, "it is connected to mimeod")

    def connection(self):
        return UnixConnection(self.path)

    def tcp(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def raw(self):
        """A connected socket."""
        connection = self.connection()
        connection.connect()
        return connection.sock

    def request(self, method, path, body=None, headers=None, connection=None):
        connection = connection or self.connection()
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        connection.request(method, path, body, headers or {})
        return Reply(connection.getresponse())

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def complete(self, prompt="count 97 3\n", connection=None, **fields):
        fields = {"prompt": prompt, "temperature": 0, "max_tokens": 64, **fields}
        return self.post("/v1/completions", fields, connection=connection)

    def chat(self, content="count 97 3", **fields):
        return self.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": content}], "temperature": 0, **fields})

    def metric(self, name):
        return metric_of(self.get("/metrics").body.decode(), name)

    def await_metric(self, name, value):
        eventually(lambda: self.metric(name) == value, f"{name} is {value}")


class Rig:
    """A folder with both programs, started."""

    def __init__(self, options=(), daemon_options=(), start=True, model=None):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mimeo-http-"))
        self.daemon = Daemon(self.folder, daemon_options, model)
        self.server = Server(self.folder, self.daemon, options)
        if start:
            self.daemon.start()
            self.server.start()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        for process in (self.server, self.daemon):
            process.kill()
        if failure[0] and getattr(failure[1], "code", 1) != 0:
            for process in (self.server, self.daemon):
                if process.log_path.exists():
                    print("".join(f"# {line}\n" for line in process.log().splitlines()[-20:]), end="")
        shutil.rmtree(self.folder, ignore_errors=True)


shared = None  # the rig of tests that need no own one


def run(module, with_shared=True):
    """Run the functions of a module that begin with test_, in their order."""
    global shared
    tests = [f for name, f in vars(module).items() if name.startswith("test_") and callable(f)]
    only = sys.argv[1:]
    tests = [t for t in tests if not only or t.__name__ in only]
    failed = 0
    print(f"1..{len(tests)}", flush=True)
    if with_shared:
        shared = Rig()
    try:
        for number, test in enumerate(tests, 1):
            try:
                test()
                print(f"ok {number} - {test.__name__}", flush=True)
            except Exception:
                failed += 1
                print(f"not ok {number} - {test.__name__}")
                print("".join(f"# {line}\n" for line in traceback.format_exc().splitlines()), end="", flush=True)
    finally:
        if shared:
            shared.__exit__(failed or None, None)
    sys.exit(1 if failed else 0)
