#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""mimeo-run with a tokenizer: text, chats, scores, JSON. tinycalc answers "count 97 3\\n" with "97 98 99"."""
import json
import math
import os
import pathlib
import pty
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

import rig

PROGRAM = str(rig.BUILD / "daemon" / "mimeo-run")
ENV = {"LD_LIBRARY_PATH": ":".join(str(rig.BUILD / folder) for folder in ("sdk", "sdk/text"))}


def run(*arguments, text="", status=0):
    done = subprocess.run([PROGRAM, *arguments], input=text, capture_output=True, text=True, timeout=rig.PATIENCE,
                          env={**os.environ, "MIMEO_SOCKET": str(daemon.socket), **ENV})
    assert done.returncode == status, (arguments, done)
    assert (done.stderr == "") == (status == 0), done.stderr
    return done.stdout if status == 0 else done.stderr


def test_prompt_and_answer_are_text():
    assert run("--prompt", "count 97 3\n") == "97 98 99"
    assert run("--model", "tinycalc", "--prompt", "count 97 3\n", "--ids") == "57,55,32,57,56,32,57,57\n"


def test_daemon_that_does_not_answer_may_be_loading():
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(folder + "/m.sock")
        listener.listen()
        message = run("--socket", folder + "/m.sock", "--timeout", "0.3", "--prompt", "x", status=1)
        assert "may be loading its models" in message, message


def test_prompt_comes_from_a_pipe_without_its_last_newline():
    assert run(text="count 97 3\n\n") == "97 98 99"
    assert run("--tokenize", text="a\n") == "1\n97\n"


def test_answer_ends_before_a_stop_text():
    assert run("--prompt", "count 97 12\n", "--stop-text", "99 1") == "97 98 "
    assert run("--prompt", "count 97 12\n", "--stop-text", "x", "--stop-text", "8 9") == "97 9"


def test_chat_renders_the_template():
    assert run("--chat", "--prompt", "count 97 3") == "97 98 99"
    assert run("--chat", text="count 97 3\n") == "97 98 99"
    assert "the message is empty" in run("--chat", text="\n", status=2)
    assert "exclude each other" in run("--chat", "--score", status=2)
    for options in (("--chat", "--tokenize"), ("--tokenize", "--chat")):
        assert "mimeo-tokenize --chat" in run(*options, status=2)


def test_options_that_would_do_nothing_are_refused():
    with tempfile.NamedTemporaryFile() as file:
        pathlib.Path(file.name).write_text("precious")
        for mode in ("--chat", "--score", "--tokenize"):
            assert "--logits excludes" in run(mode, "--prompt", "a", "--logits", file.name, status=2)
        assert pathlib.Path(file.name).read_text() == "precious"
    for option in (("--max-tokens", "1"), ("--stop-text", "x")):
        assert "--score generates nothing" in run("--score", "--prompt", "a", *option, status=2)


def test_chat_needs_a_template():
    with tempfile.TemporaryDirectory(prefix="mimeo-run-") as name:
        folder = pathlib.Path(name)
        model = folder / "plain"
        model.mkdir()
        for path in daemon.model.iterdir():
            if path.name != "chat_template.jinja":
                (model / path.name).symlink_to(path.resolve())
        plain = rig.Daemon(folder, model=model)
        try:
            plain.start()
            rig.eventually(lambda: "ready" in plain.log(), "mimeod serves")
            assert run("--socket", str(plain.socket), "--prompt", "count 97 3\n") == "97 98 99"
            assert "the model has no chat template" in run(
                "--socket", str(plain.socket), "--chat", "--prompt", "a", status=2)
        finally:
            plain.kill()


def test_messages_of_a_chat_are_utf_8():
    wrong = os.fsdecode(b"a\xff")
    assert "user message of 2 bytes is not UTF-8" in run("--chat", "--prompt", wrong, status=3)
    assert "system message of 2 bytes is not UTF-8" in run("--chat", "--system", wrong, "--prompt", "a", status=3)


def test_tokens_are_printed_one_a_line():
    assert run("--tokenize", "--prompt", "ab") == "1\n97\n98\n"
    assert run("--tokenize", "--tokens", "5,6") == "5\n6\n"


def test_scores_are_log_probabilities_of_the_prompts_tokens():
    lines = run("--score", "--prompt", "count 97 3\n97").splitlines()
    rows = [line.split("\t") for line in lines[:-1]]
    assert [int(row[1]) for row in rows] == [1, *b"count 97 3\n97"]
    assert rows[0][0] == "-" and json.loads(rows[1][2]) == "c"
    logprobs = [float(row[0]) for row in rows[1:]]
    assert all(x <= 0 for x in logprobs)
    assert logprobs[-1] > -0.1 > logprobs[0], "the answer is sure, its first letter is not"
    total, perplexity = (float(part.split()[-1]) for part in lines[-1].split(", ")[1:])
    assert math.isclose(total, sum(logprobs), abs_tol=1e-4)
    assert math.isclose(perplexity, math.exp(-sum(logprobs) / len(logprobs)), rel_tol=1e-4)


def test_scores_as_json_have_the_same_figures():
    lines = run("--score", "--prompt", "count 97 3\n").splitlines()
    *scores, final = (json.loads(line) for line in run("--score", "--json-events", "--prompt", "count 97 3\n").splitlines())
    assert scores[0] == {"event": "score", "token": 1, "logprob": None, "text": "<|begin|>"}
    for line, score in zip(lines[1:-1], scores[1:], strict=True):
        logprob, token, text = line.split("\t")
        assert int(token) == score["token"] and json.loads(text) == score["text"]
        assert math.isclose(float(logprob), score["logprob"], abs_tol=1e-6)
    assert final["tokens"] == len(scores) - 1
    assert math.isclose(final["logprob"], sum(score["logprob"] for score in scores[1:]), abs_tol=1e-4)


def test_json_events_tell_all():
    events = [json.loads(line) for line in
              run("--prompt", "count 97 3\n", "--json-events", "--logprobs", "2").splitlines()]
    *tokens, final = events
    assert "".join(e["text"] for e in tokens) + final["text"] == "97 98 99"
    assert [t for e in tokens for t in e["tokens"]] == [*b"97 98 99", 2]
    for event in tokens:
        for token, entries in zip(event["tokens"], event["logprobs"], strict=True):
            assert len(entries) == 3 and entries[0]["token"] == token and entries[0]["logprob"] <= 0
            assert entries[1]["logprob"] >= entries[2]["logprob"]
    assert final["finish"] == "stop" and final["prompt_tokens"] == 12 and final["generated_tokens"] == 9
    assert 0 <= final["first_token_s"] <= final["seconds"]


def test_penalties_and_class_reach_the_daemon():
    assert run("--prompt", "count 97 3\n", "--class", "batch") == "97 98 99"
    assert run("--prompt", "count 97 3\n", "--frequency-penalty", "2", "--repetition-penalty", "100") != "97 98 99"


def test_refusals_say_why():
    assert "the daemon serves: tinycalc" in run("--model", "x", "--prompt", "a", status=3)
    assert "exceed the" in run("--prompt", "a", "--max-tokens", "9000", status=3)
    assert "--stop-text: it is not UTF-8" in run("--prompt", "a", "--stop-text", os.fsdecode(b"\xff"), status=2)


def run_held(*arguments):
    """mimeo-run, which has tokens, and the daemon does not go on."""
    process = subprocess.Popen([PROGRAM, "--prompt", "count 97 3\n", "--ignore-eos", "--max-tokens", "1500", *arguments],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={
                                   **os.environ, "MIMEO_SOCKET": str(daemon.socket), **ENV})
    assert select.select([process.stdout], [], [], rig.PATIENCE)[0]
    daemon.hold()
    return process


def test_late_answer_ends_its_line_and_names_the_option():
    process = run_held("--timeout", "2")
    time.sleep(2.2)
    daemon.release()
    out, errors = process.communicate(timeout=rig.PATIENCE)
    assert process.returncode == 3 and out.startswith("9") and out.endswith("\n"), out[-20:]
    assert errors == "mimeo-run: --timeout: the answer had not ended after 2 s\n", errors


def test_answer_of_a_daemon_that_hangs_ends_its_line():
    process = run_held("--timeout", "1")
    daemon.signal(signal.SIGSTOP)
    try:
        out, errors = process.communicate(timeout=rig.PATIENCE)
    finally:
        daemon.signal(signal.SIGCONT)
        daemon.release()
    assert process.returncode == 1 and out.startswith("9") and out.endswith("\n"), out[-20:]
    assert errors == "mimeo-run: the daemon does not answer\n", errors
    daemon.await_metric("mimeo_requests_running", 0)


def test_late_first_token_names_the_option():
    for options in (("--first-token", "0.25"), ("--first-token", "0.25", "--timeout", "9")):
        daemon.hold()
        process = subprocess.Popen([PROGRAM, "--prompt", "x", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, env={**os.environ, "MIMEO_SOCKET": str(daemon.socket), **ENV})
        time.sleep(0.6)
        daemon.release()
        out, errors = process.communicate(timeout=rig.PATIENCE)
        assert process.returncode == 3 and out == "", out
        assert errors == "mimeo-run: --first-token: no token came in 0.25 s\n", errors


def test_json_events_of_a_lost_daemon_tell_no_wrong_number():
    global daemon
    before = daemon
    with rig.Rig(start=False) as own:
        daemon = own.daemon
        try:
            daemon.start()
            rig.eventually(lambda: "ready" in daemon.log(), "mimeod serves")
            process = run_held("--json-events")
            daemon.kill()
            out, _ = process.communicate(timeout=rig.PATIENCE)
        finally:
            daemon = before
    *tokens, final = map(json.loads, out.splitlines())
    assert process.returncode == 1 and final["status"] == "MIMEO_E_GONE", final
    assert final["prompt_tokens"] == 12 and "cached_tokens" not in final, final
    assert final["generated_tokens"] == sum(len(event["tokens"]) for event in tokens), final


class Terminal:
    """mimeo-run with a terminal."""

    def __init__(self, *arguments):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(ENV, MIMEO_SOCKET=str(daemon.socket), TERM="dumb")
            for name in ("LANG", "LC_ALL", "LC_CTYPE"):
                os.environ.pop(name, None)
            os.execv(PROGRAM, [PROGRAM, *arguments])
        self.text = ""

    def expect(self, what):
        until = time.monotonic() + rig.PATIENCE
        while what not in self.text:
            assert time.monotonic() < until, f"never: {what!r} in {self.text!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                self.text += os.read(self.fd, 4096).decode(errors="replace")
        before, self.text = self.text.split(what, 1)
        return before

    def say(self, line):
        os.write(self.fd, line.encode())

    def wait(self):
        try:
            while os.read(self.fd, 4096):
                pass
        except OSError:
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def prompt_tokens():
    rows = json.loads(daemon.ctl("--json", "sessions"))
    return sum(row["prompt_tokens"] for row in rows)


def test_chat_on_a_terminal_keeps_its_history_in_the_daemon():
    terminal = Terminal("--chat", "--max-tokens", "40")
    terminal.expect("> ")
    terminal.say("count 97 3\n")
    terminal.expect("97 98 99")
    terminal.expect("first token after")
    before = prompt_tokens()
    terminal.expect("> ")
    terminal.say("ab\n")
    terminal.expect("first token after")
    assert prompt_tokens() - before < len("count 97 3\n97 98 99"), "less than the history"
    terminal.expect("> ")
    terminal.say("/quit\n")
    assert terminal.wait() == 0


def test_chat_on_a_terminal_names_its_commands():
    terminal = Terminal("--chat", "--max-tokens", "1")
    lines = [line for line in terminal.expect("> ").splitlines() if line]
    assert len(lines) == 1 and "/new" in lines[0] and "/quit" in lines[0], lines
    before = prompt_tokens()
    for line in ("/exit", "/new now", "/etc/hosts"):
        terminal.say(line + "\n")
        answer = terminal.expect("> ")
        assert f"no command {line}: " in answer and "/new" in answer and "/quit" in answer, answer
    assert prompt_tokens() == before, "nothing was sent"
    terminal.say(" /exit\n")
    terminal.expect("first token after")
    terminal.expect("> ")
    terminal.say("/quit\n")
    assert terminal.wait() == 0


def test_interrupt_ends_the_answer_and_not_the_chat():
    terminal = Terminal("--chat", "--ignore-eos")
    terminal.expect("> ")
    daemon.hold()
    terminal.say("count 97 3\n")
    daemon.await_metric("mimeo_requests_running", 1)
    terminal.expect("waiting for the first token: 1 s")
    os.kill(terminal.pid, signal.SIGINT)
    time.sleep(0.2)
    daemon.release()
    terminal.expect("> ")
    daemon.await_metric("mimeo_requests_running", 0)
    terminal.say("\x04")
    assert terminal.wait() == 0


def test_second_interrupt_ends_the_program():
    terminal = Terminal("--chat")
    terminal.expect("> ")
    daemon.hold()
    terminal.say("count 97 3\n")
    daemon.await_metric("mimeo_requests_running", 1)
    daemon.signal(signal.SIGSTOP)  # the cancel has no answer, either
    try:
        def ended():
            os.kill(terminal.pid, signal.SIGINT)
            time.sleep(0.1)
            return os.waitid(os.P_PID, terminal.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)

        rig.eventually(ended, "it ends")
        assert terminal.wait() == -signal.SIGINT
    finally:
        daemon.signal(signal.SIGCONT)
        daemon.release()


def test_lines_of_a_chat_are_utf_8_in_any_locale():
    text = "é日本"
    alone = json.loads(run("--chat", "--prompt", text, "--max-tokens", "1", "--json-events").splitlines()[-1])
    terminal = Terminal("--chat", "--max-tokens", "1")
    terminal.expect("> ")
    terminal.say(text + "\n")
    terminal.expect(f"{alone['prompt_tokens']} prompt tokens")
    terminal.expect("> ")
    terminal.say("/quit\n")
    assert terminal.wait() == 0


def test_turn_that_failed_is_not_part_of_the_chat():
    terminal = Terminal("--chat", "--timeout", "1")
    terminal.expect("> ")
    daemon.hold()
    terminal.say("ab\n")
    terminal.expect("ab\r\n")
    try:
        assert "--timeout" in terminal.expect("> ")
    finally:
        daemon.release()

    def answered():
        terminal.say("count 97 3\n")
        terminal.expect("count 97 3\r\n")
        answer = terminal.expect("> ")
        assert "97 98 99" in answer or "--timeout" in answer, answer
        return "97 98 99" in answer

    rig.eventually(answered, "it answers in a second")
    terminal.say("/quit\n")
    assert terminal.wait() == 0


if __name__ == "__main__":
    with rig.Rig(start=False) as own:
        daemon = own.daemon
        daemon.start()
        rig.eventually(lambda: "ready" in daemon.log(), "mimeod serves")
        rig.run(sys.modules[__name__], with_shared=False)
