#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Keys, and sockets that would be open to others."""
import subprocess
import sys

import rig
from wire import server


# ---- keys ----

def test_tcp_needs_a_key_and_a_unix_socket_does_not():
    good = {"Authorization": f"Bearer {rig.KEY}"}
    reply = server().get("/v1/models", connection=server().tcp(), headers=good)
    assert reply.status == 200
    for headers in ({}, {"Authorization": rig.KEY}, {"Authorization": f"Basic {rig.KEY}"},
                    {"Authorization": f"Bearer {rig.KEY}x"}, {"Authorization": f"Bearer {rig.KEY[:-1]}"},
                    {"Authorization": "Bearer "}, {"Authorization": "Bearer " + "x" * 9000}):
        for path in ("/v1/models", "/metrics", "/nothing"):
            reply = server().get(path, connection=server().tcp(), headers=headers)
            assert reply.status == 401 and reply.error()["code"] == "invalid_api_key", headers
            assert reply.headers["WWW-Authenticate"] == "Bearer"
    assert server().get("/health", connection=server().tcp()).status == 200
    assert server().get("/v1/models").status == 200


def test_keys_are_read_again_at_sighup():
    with rig.Rig() as own:
        new = "sk-another-0123456789"
        headers = {"Authorization": f"Bearer {new}"}
        assert own.server.get("/v1/models", connection=own.server.tcp(), headers=headers).status == 401
        own.server.keys.write_text(new + "\n")
        own.server.signal(1)
        rig.eventually(lambda: own.server.get("/v1/models", connection=own.server.tcp(),
                                              headers=headers).status == 200, "the new key is valid")
        old = {"Authorization": f"Bearer {rig.KEY}"}
        assert own.server.get("/v1/models", connection=own.server.tcp(), headers=old).status == 401
        # A file that is wrong changes nothing.
        own.server.keys.write_text("short\n")
        own.server.signal(1)
        rig.eventually(lambda: "16 to 255" in own.server.log(), "the file is refused")
        assert own.server.get("/v1/models", connection=own.server.tcp(), headers=headers).status == 200


def refused(folder, *options, status=2):
    done = subprocess.run([rig.PROGRAM, "--socket", str(folder / "none"), *options], capture_output=True, text=True,
                          timeout=rig.PATIENCE)
    assert done.returncode == status, done
    return done.stderr


def test_key_files_that_others_can_read_or_write_are_refused():
    with rig.Rig(start=False) as own:
        path = own.folder / "keys"
        listen = ["--listen", "127.0.0.1:0", "--keys", str(path)]
        path.write_text(rig.KEY + "\n")
        for mode, why in ((0o644, "others"), (0o660, "group"), (0o602, "others")):
            path.chmod(mode)
            log = refused(own.folder, *listen, status=1)
            assert why in log and "cannot start" not in log and log.count("\n") == 1, log
        path.chmod(0o600)
        for text, why in (("", "has no key"), ("# x\n", "has no key"), ("short\n", "line 1"),
                          ("x" * 256 + "\n", "line 1"), (rig.KEY + "\nk\u00e9" + "y" * 20 + "\n", "line 2")):
            path.write_text(text)
            assert why in refused(own.folder, *listen, status=1), text
        path.unlink()
        path.mkdir()
        assert "regular file" in refused(own.folder, *listen, status=1)


def test_sockets_that_would_be_open_to_others_are_refused():
    with rig.Rig(start=False) as own:
        own.server.keys.write_text(rig.KEY + "\n")
        own.server.keys.chmod(0o600)
        keys = ["--keys", str(own.server.keys)]
        assert "--keys" in refused(own.folder, "--listen", "127.0.0.1:0")
        for address in ("0.0.0.0:0", "[::]:0", "192.0.2.1:80"):
            assert "loopback" in refused(own.folder, "--listen", address, *keys)
        for address in ("nonsense", "127.0.0.1", "127.0.0.1:99999", "unix:relative", "127.0.0.1:", "[::1:80"):
            refused(own.folder, "--listen", address, *keys)
        (own.folder / "file").write_text("precious")
        assert "no socket" in refused(own.folder, "--listen", f"unix:{own.folder}/file", status=1)
        assert (own.folder / "file").read_text() == "precious"
        assert "--listen" in refused(own.folder)


def test_wrong_options_exit_with_2():
    for options, why in ((["--bogus"], "--bogus: unknown"), (["--max", "1"], "--max: unknown"), (["--listen"], "needs a value"),
                         (["--help=x"], "takes no value"), (["x"], "'x'"), (["--max-requests", "3"], "power of two"),
                         (["--max-body-bytes", "1"], "1024"), (["--max-tokens", "1T"], "1T"), (["--socket-mode", "9"], "octal"),
                         (["--idle-seconds", "18446744073709551617"], "18446744073709551617"), (["--log-level", "x"], "debug"),
                         (["--max-choices", "8", "--max-requests", "4"], "exceeds"), (["--max-choices", "0.01K"], "is not an integer"),
                         (["--listen", "unix:/x"] * 9, "8 times")):
        done = subprocess.run([rig.PROGRAM, *options], capture_output=True, text=True, timeout=rig.PATIENCE)
        assert done.returncode == 2 and done.stdout == "", (options, done)
        assert done.stderr.startswith("mimeo-http: ") and why in done.stderr and done.stderr.count("\n") == 1, (options, done)
    done = subprocess.run([rig.PROGRAM, "--help"], capture_output=True, text=True, timeout=rig.PATIENCE)
    assert done.returncode == 0 and "--drain-seconds N" in done.stdout and max(map(len, done.stdout.splitlines())) <= 80


if __name__ == "__main__":
    rig.run(sys.modules[__name__])
