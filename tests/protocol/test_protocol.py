#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""mimeo_protocol(7): its tables are those of the sources, and a client written from it is served."""
import os
import pathlib
import platform
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "http"))
import client  # noqa: E402
import rig  # noqa: E402

PAGE = (rig.SOURCE / "man" / "mimeo_protocol.7.scd").read_text()
CLIENT = str(rig.SOURCE / "tests" / "protocol" / "client.py")
# A table of tables.c, the line of the page before it, and how many of its columns the sources know.
TABLES = [("versions", "# VERSIONS", 2), ("control", "The file begins with the control page", 3),
          ("submission", "# SUBMISSION ENTRY", 3), ("completion", "# COMPLETION ENTRY", 3),
          ("row", "with the masks _documents_", 3), ("handle", "A handle; kinds are", 3), ("HELLO", "# HELLO", 4),
          ("WELCOME", "# WELCOME", 4), ("model", "A model:", 4), ("generate", "# GENERATE", 4), ("step", "# STEP", 4),
          ("call", "A call:", 4), ("reply", "A reply:", 4), ("hello bytes", "A session with 64 entries", 0),
          ("most bytes", "The path is that of", 2)]
# A header, the prefix of its constants, and the line before their table.
CONSTANTS = [("ipc/ring.h", "RING_OP_", "# OPERATIONS"), ("ipc/ring.h", "RING_CQE_", "Kinds:"),
             ("ipc/ring.h", "RING_DETAIL_", "Details, with"), ("types.h", "MIMEO_FINISH_", "Values of _finish_"),
             ("types.h", "MIMEO_E_", "Statuses:"), ("types.h", "MIMEO_GENERATE_", "Bits of _flags_"),
             ("types.h", "MIMEO_STEP_", "Bits of _outputs_"), ("ipc/msg.h", "MSG_CALL_", "# CALLS")]
NOT_OUTPUTS = ("FENCE", "DETERMINISTIC")  # flags of steps, which the page has in a line


def block(marker):
    """The lines of the first table behind a line of the page, without its head."""
    at = PAGE.index("\n" + marker)
    lines = PAGE[at:].split("```\n", 2)[1].splitlines()
    return lines if re.match("[0-9a-f]{2} ", lines[0]) else lines[1:]


def tables():
    text = subprocess.run([str(rig.BUILD / "tests" / "protocol" / "protocol_tables")], capture_output=True, text=True,
                          check=True).stdout
    found = {}
    for line in text.splitlines():
        if line.endswith(":"):
            rows = found[line[:-1]] = []
        else:
            rows.append(line)
    return found


def test_tables_are_those_of_the_sources():
    sources = tables()
    assert sorted(sources) == sorted(name for name, _, _ in TABLES)
    for name, marker, columns in TABLES:
        rows = [" ".join(line.split()[:columns or None]) for line in block(marker)]
        if not columns:
            rows = [" ".join(rows)]
        assert rows == sources[name], (name, set(rows) ^ set(sources[name]))


def constants(header, prefix):
    path = header if "/" in header else "ipc/include/mimeo/" + header
    text = (rig.SOURCE / path).read_text()
    names, value = [], 0
    for name, given in re.findall(rf"^(?:\t|#define ){prefix}([A-Z_]+)\b(?: =)? ?(-?\d+)?u?", text, re.MULTILINE):
        if name == "MAX":
            continue
        value = int(given) if given else value + 1
        names.append(f"{name} {value}")
    return names


def test_constants_are_those_of_the_headers():
    for header, prefix, marker in CONSTANTS:
        rows = [" ".join(line.split()[:2]) for line in block(marker)]
        names = constants(header, prefix)
        if prefix == "MIMEO_STEP_":
            names = [name for name in names if name.split()[0] not in NOT_OUTPUTS]
        assert sorted(names) == sorted(rows), (prefix, set(rows) ^ set(names))


def ask(*arguments, status=0):
    done = subprocess.run([sys.executable, CLIENT, str(rig.shared.daemon.socket), *arguments], capture_output=True,
                          text=True, timeout=rig.PATIENCE)
    assert done.returncode == status, done
    return (done.stderr if status else done.stdout).strip()


def mimeo_run(tokens):
    return subprocess.run(
        [str(rig.BUILD / "daemon" / "mimeo-run"), "--socket", str(rig.shared.daemon.socket), "--tokens", tokens,
         "--max-tokens", "64", "--ids"], capture_output=True, text=True, check=True,
        timeout=rig.PATIENCE).stdout.strip()


def test_client_lists_the_models():
    assert re.fullmatch(r"0 tinycalc [1-9]\d*", ask())


def test_client_gets_the_tokens_of_mimeo_run():
    for text in ("count 97 12\n", "12+34="):
        tokens = ",".join(["1"] + [str(byte) for byte in text.encode()])
        own, other = ask("tinycalc", tokens).split(","), mimeo_run(tokens).split(",")
        assert len(own) > 2 and own == [*other, "2"], (own, other)  # mimeo-run leaves the end token out


def test_client_goes_around_its_rings():
    own = client.Client(str(rig.shared.daemon.socket), entries=2)
    answers = {tuple(own.generate("tinycalc", [1, *b"1+1="], 8)) for _ in range(9)}
    assert len(answers) == 1 and own.sq_index == 9, answers


def test_client_gets_the_detail_of_a_refusal():
    assert ask("tinycalc", "1,99999", status=1) == "client.py: status -2, detail 1 [1, 99999, 256, 0]"


def test_client_of_another_version_is_refused_by_the_versions_alone():
    sock = client.socket.socket(client.socket.AF_UNIX, client.socket.SOCK_STREAM)
    sock.connect(str(rig.shared.daemon.socket))
    own = client.Client.__new__(client.Client)
    own.socket = sock
    own.send({client.VERSION: client.PROTOCOL_VERSION + 1, 120: 1})
    answer, fds = own.receive()
    assert answer[client.STATUS] == -201 and answer[client.VERSION] == client.PROTOCOL_VERSION and not fds, answer


def test_client_refuses_a_message_that_ends_early():
    own = client.Client.__new__(client.Client)
    own.socket, daemon = client.socket.socketpair()
    daemon.sendall(b"\x09\0\0\0\x81")
    daemon.close()
    try:
        own.receive()
    except client.Refused:
        return
    assert not "refused"


class Shared(rig.Rig):
    """No mimeo-http."""

    def __init__(self):
        super().__init__(start=False)
        self.daemon.start()
        rig.eventually(lambda: "serving" in self.daemon.ctl("status"), "mimeod serves")


if __name__ == "__main__":
    os.environ["LD_LIBRARY_PATH"] = ":".join(str(rig.BUILD / folder) for folder in ("sdk", "sdk/text"))
    if platform.machine() != "x86_64":
        print("1..0 # SKIP client.py needs stores that stay in order")
        sys.exit(0)
    rig.Rig = Shared
    rig.run(sys.modules[__name__])
