#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The examples that make text: examples/chat.c and examples/python/mimeo.py."""
import os
import select
import signal
import subprocess
import sys

import rig

LIBRARIES = ":".join(str(rig.BUILD / folder) for folder in ("sdk", "sdk/text"))
PYTHON = rig.SOURCE / "examples" / "python"


def run(argv, text="", **env):
    return subprocess.run(argv, input=text, capture_output=True, text=True, errors="surrogateescape", timeout=rig.PATIENCE,
                          env={**os.environ, "MIMEO_SOCKET": str(daemon.socket), "LD_LIBRARY_PATH": LIBRARIES, **env})


def python(code):
    done = run([sys.executable, "-c", f"import sys; sys.path.insert(0, {str(PYTHON)!r})\nimport mimeo\n" + code])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_chat_in_c_answers_lines_and_has_60_of_its_own():
    done = run([str(rig.BUILD / "examples" / "chat")], "count 97 3\n\n")
    assert done.returncode == 0 and done.stdout == "97 98 99\n", (done.stdout, done.stderr)
    assert len((rig.SOURCE / "examples" / "chat.c").read_text().splitlines()) <= 60


def test_chat_in_c_says_why_it_cannot():
    done = run([str(rig.BUILD / "examples" / "chat")], "x\n", MIMEO_SOCKET="/nonexistent")
    assert done.returncode == 1 and "/nonexistent" in done.stderr and "No such file" in done.stderr, done
    done = run([str(rig.BUILD / "examples" / "chat")], "x\n", MIMEO_SOCKET="/" + "x" * 200)
    assert done.returncode == 1 and "1 to 107 bytes" in done.stderr, done


def test_chat_in_c_refuses_a_line_that_is_not_utf_8():
    done = run([str(rig.BUILD / "examples" / "chat")], os.fsdecode(b"\xff\n\n"))
    assert done.returncode == 1 and "not UTF-8" in done.stderr, done


def test_chat_in_c_reports_a_failed_answer_on_standard_error():
    with rig.Rig(start=False) as own:
        own.daemon.start()
        rig.eventually(lambda: "ready" in own.daemon.log(), "it serves")
        own.daemon.hold()
        chat = subprocess.Popen([str(rig.BUILD / "examples" / "chat")], text=True, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={**os.environ, "MIMEO_SOCKET": str(own.daemon.socket), "LD_LIBRARY_PATH": LIBRARIES})
        chat.stdin.write("count 97 3\n")
        chat.stdin.flush()
        own.daemon.await_metric("mimeo_requests_running", 1)
        own.daemon.kill()
        out, errors = chat.communicate(timeout=rig.PATIENCE)
        assert out == "\n" and "the daemon is gone" in errors, (out, errors)


def test_python_program_is_a_chat():
    done = run([sys.executable, str(PYTHON / "mimeo.py"), "tinycalc"], "count 97 3\n")
    assert done.returncode == 0 and done.stdout == "97 98 99\n", (done.stdout, done.stderr)


def test_python_program_refuses_an_unknown_model_at_once():
    done = run([sys.executable, str(PYTHON / "mimeo.py"), "x"])
    assert done.returncode == 1 and done.stderr == "mimeo.py: no model x; the daemon serves: tinycalc\n", done


def test_python_yields_pieces_of_an_answer():
    out = python('with mimeo.Mimeo() as m:\n'
                 '\tprint(m.models())\n'
                 '\tpieces = list(m.generate("count 97 12\\n", temperature=0))\n'
                 '\tprint(len(pieces) > 5, "".join(pieces))\n'
                 '\tprint("".join(m.chat([{"role": "user", "content": "count 97 3"}], temperature=0)))\n'
                 '\tprint(m.encode("a"), m.decode([97, 98]))\n')
    assert out == ("['tinycalc']\nTrue 97 98 99 100 101 102 103 104 105 106 107 108\n97 98 99\n[1, 97] ab\n"), out


def test_python_stops_at_a_string_and_at_a_limit():
    out = python('with mimeo.Mimeo() as m:\n'
                 '\tprint(repr("".join(m.generate("count 97 12\\n", temperature=0, stop=["99 1"]))))\n'
                 '\tprint(repr("".join(m.generate("count 97 12\\n", temperature=0, max_tokens=4))))\n')
    assert out == "'97 98 '\n'97 9'\n", out


def test_python_answers_again_after_a_generator_that_was_left():
    out = python('with mimeo.Mimeo() as m:\n'
                 '\tfor piece in m.generate("count 97 3\\n", ignore_eos=True):\n'
                 '\t\tbreak\n'
                 '\tprint("".join(m.generate("count 97 3\\n", temperature=0)))\n')
    assert out == "97 98 99\n", out


def test_python_closes_an_answer_with_its_session():
    out = python('with mimeo.Mimeo() as m:\n'
                 '\tanswer = m.generate("count 97 3\\n", ignore_eos=True)\n'
                 '\tnext(answer)\n'
                 'print(list(answer))\n'
                 'with mimeo.Mimeo() as m:\n'
                 '\tlate = m.generate([1, 97])\n'
                 'try:\n\tnext(late)\nexcept mimeo.MimeoError as error:\n\tprint(error)\n')
    assert out == "[]\nthe session is closed\n", out


def test_python_does_not_mix_two_answers():
    out = python('with mimeo.Mimeo() as m:\n'
                 '\tone, two = (m.generate("count 97 3\\n", temperature=0) for _ in range(2))\n'
                 '\tfirst = next(one)\n'
                 '\ttry:\n\t\tnext(two)\n\texcept mimeo.MimeoError as error:\n\t\tprint(error)\n'
                 '\tprint(first + "".join(one), "".join(m.generate("count 97 3\\n", temperature=0)))\n')
    assert out == "another answer has begun\n97 98 99 97 98 99\n", out


def test_python_sees_an_interrupt_while_it_waits():
    daemon.hold()
    code = (f"import signal, sys; sys.path.insert(0, {str(PYTHON)!r})\nimport mimeo\n"
            "signal.signal(signal.SIGINT, lambda *_: print('seen', flush=True))\n"
            "with mimeo.Mimeo() as m:\n\tlist(m.generate('x', max_tokens=1))\n")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env={
        **os.environ, "MIMEO_SOCKET": str(daemon.socket), "LD_LIBRARY_PATH": LIBRARIES})
    try:
        daemon.await_metric("mimeo_requests_running", 1)
        process.send_signal(signal.SIGINT)
        assert select.select([process.stdout], [], [], rig.PATIENCE)[0], "it is not seen"
    finally:
        daemon.release()
        process.communicate(timeout=rig.PATIENCE)


def test_python_raises_what_the_daemon_says():
    out = python('with mimeo.Mimeo() as m:\n'
                 '\tfor call in (lambda: list(m.generate([1, 256])), lambda: list(m.generate("x" * 3000)),\n'
                 '\t\tlambda: m.encode("x", "none"), lambda: m.chat([{"role": "king", "content": "x"}])):\n'
                 '\t\ttry:\n\t\t\tcall()\n'
                 '\t\texcept mimeo.MimeoError as error:\n\t\t\tprint(error.status, error)\n')
    lines = out.splitlines()
    assert len(lines) == 4 and lines[0].startswith("-2 token 1 is 256") and lines[1].startswith("-5 "), out
    assert lines[2].startswith("-7 ") and "unknown role king" in lines[3], out


if __name__ == "__main__":
    with rig.Rig(start=False) as own:
        daemon = own.daemon
        daemon.start()
        rig.eventually(lambda: "ready" in daemon.log(), "mimeod serves")
        rig.run(sys.modules[__name__], with_shared=False)
