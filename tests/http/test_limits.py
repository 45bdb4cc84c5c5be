#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What clients may not do: wrong requests, wrong keys, too much of anything, too slowly."""
import json
import re
import resource
import socket
import subprocess
import sys
import time

import rig


def server():
    return rig.shared.server


def talk(data, sock=None, shut=False):
    """Send bytes on a connection of their own, and read until the server closes it."""
    sock = sock or server().raw()
    sock.sendall(data)
    if shut:
        sock.shutdown(socket.SHUT_WR)
    return read_all(sock)


def read_all(sock):
    parts = []
    while True:
        try:
            part = sock.recv(65536)
        except ConnectionResetError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def assert_lives():
    assert server().complete().json()["choices"][0]["text"] == "97 98 99"


# ---- wrong requests ----

def test_bytes_that_are_no_http_are_refused():
    for data in (b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):
        reply = talk(data, shut=True)
        assert not reply.startswith(b"HTTP/1.1 2"), reply
    assert_lives()


def test_path_that_is_not_there_is_an_error_in_json():
    for method in ("GET", "POST", "DELETE"):
        reply = server().request(method, "/v1/nothing", "{}" if method == "POST" else None)
        assert reply.status == 404 and reply.error()["type"] == "invalid_request_error"


def test_wrong_method_is_refused_with_the_right_one():
    reply = server().get("/v1/completions")
    assert reply.status == 405 and reply.headers["Allow"] == "POST"
    assert server().post("/v1/models", {}).headers["Allow"] == "GET"
    assert server().request("HEAD", "/health").status == 200


def test_body_that_is_no_json_is_refused_with_its_place():
    reply = server().post("/v1/completions", '{"prompt": \n "a",, }')
    assert reply.status == 400 and "line 2" in reply.error()["message"]
    for body in ("", "[]", "1", '"x"', "{", "\xff", '{"a":1,"a":2}', "[" * 100000):
        assert server().post("/v1/completions", body.encode("latin-1")).status == 400, body[:10]


def test_wrong_types_and_ranges_are_refused_by_field():
    cases = {
        "model": 1, "prompt": {}, "temperature": "hot", "top_p": 2, "n": 0, "max_tokens": -1, "stream": "yes",
        "stop": [1], "seed": 1.5, "logprobs": 99, "presence_penalty": 3, "frequency_penalty": -3,
        "logit_bias": {"x": 1}, "stream_options": {"include_usage": True}, "min_p": -0.1, "min_tokens": -1,
    }
    for name, value in cases.items():
        reply = server().complete(**{name: value})
        assert reply.status == 400 and reply.error()["param"] == name, (name, reply.body)
    for prompt in ([1, 256], [1, -1], [1, "a"], ["a", 1], [], "x" * 5000, None, [[]]):
        assert server().complete(prompt).status == 400, prompt
    for bias in ({"256": 1}, {"1": 101}, {"1": "x"}, {"-1": 1}, {"1": 1, "01": 1}, [1]):
        reply = server().complete(logit_bias=bias)
        assert reply.status == 400 and reply.error()["param"] == "logit_bias", bias


def test_wrong_chats_are_refused_by_field():
    for messages, field in (
            (None, "messages"), ([], "messages"), ("x", "messages"), ([1], "messages[0]"),
            ([{"content": "x"}], "messages[0]"), ([{"role": "user", "content": 1}], "messages[0].content"),
            ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content"),
            ([{"role": "assistant", "tool_calls": [1]}], "messages[0].tool_calls")):
        reply = server().chat(messages=messages)
        assert reply.status == 400 and reply.error()["param"] == field, (messages, reply.body)
    for name in ("tools", "top_logprobs", "functions", "modalities", "guided_json"):
        reply = server().chat(**{name: {"x": 1} if name != "top_logprobs" else 5})
        assert reply.status == 400 and reply.error()["param"] == name, (name, reply.body)


def test_unknown_model_is_not_found():
    reply = server().complete(model="gpt-4")
    assert reply.status == 404 and reply.error()["code"] == "model_not_found"
    assert "gpt-4" in reply.error()["message"]


def test_errors_that_quote_part_of_a_character_are_json():
    long = "x" + "\u00e9" * 50
    for field, value in (("model", long), ("logit_bias", {long: 1}), ("response_format", {"type": long})):
        reply = server().complete(**{field: value})
        assert reply.status in (400, 404) and "x\u00e9" in reply.error()["message"], (field, reply.body)
    for path in ("/v1/models/%ff", "/v1/models/x" + "%c3%a9" * 50, "/%ff", "/" + "%c3%a9" * 60):
        reply = server().get(path)
        assert reply.status == 404 and "?" in reply.error()["message"], (path, reply.body)


def test_more_tokens_than_the_model_holds_are_refused_with_the_numbers():
    reply = server().complete(max_tokens=2040)
    assert reply.status == 400 and reply.error()["code"] == "context_length_exceeded"
    assert "2048" in reply.error()["message"] and "12 tokens" in reply.error()["message"]
    assert server().post("/v1/embeddings", {"input": "x" * 2048}).status == 400


def test_request_without_a_limit_gets_what_the_sequence_holds():
    assert server().post("/v1/completions", {"prompt": "x" * 2040}).json()["usage"]["total_tokens"] <= 2048
    with rig.Rig(["--max-tokens", "2048"]) as own:
        assert own.server.chat().json()["choices"][0]["message"]["content"] == "97 98 99"
        assert own.server.chat(max_tokens=2048).status == 400


def test_what_never_fits_into_the_arena_is_not_asked_for_again():
    with rig.Rig(["--arena-bytes", "64K"]) as own:
        assert own.server.complete(max_tokens=1500).status == 200
        for fields in ({"logprobs": 20}, {"n": 16}):
            reply = own.server.complete(max_tokens=1500, **fields)
            assert reply.status == 400 and "arena" in reply.error()["message"], reply.body
            assert not reply.headers["Retry-After"]


def test_more_choices_than_allowed_are_refused():
    for n in (17, 1000):
        reply = server().complete(n=n)
        assert reply.status == 400 and "16" in reply.error()["message"], reply.body
    assert server().complete(["a"] * 9, n=2).status == 400
    assert server().complete(["a"] * 17).status == 400


# ---- connections that do what HTTP allows ----

def test_connection_serves_one_request_after_another():
    connection = server().connection()
    for _ in range(3):
        assert server().complete(connection=connection).status == 200
        assert server().complete(connection=connection, model="no").status == 404


def test_requests_that_come_at_once_are_answered_in_order():
    body = json.dumps({"prompt": "count 97 3\n", "temperature": 0})
    one = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    last = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    reply = talk((one * 2 + last).encode())
    assert reply.count(b"HTTP/1.1 200") == 3 and reply.count(b"97 98 99") == 2
    assert reply.rindex(b'"status":"ok"') > reply.rindex(b"97 98 99")


def test_body_in_chunks_is_one_body():
    body = json.dumps({"prompt": "count 97 3\n", "temperature": 0}).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(body[i:i + 5]), body[i:i + 5]) for i in range(0, len(body), 5))
    reply = talk(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                 b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert b"97 98 99" in reply


def test_transfer_coding_other_than_chunked_is_refused_at_once():
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: %s\r\n\r\n"
    for coding in (b"gzip", b"gzip, chunked", b"x\r\nExpect: 100-continue"):
        began = time.monotonic()
        reply, body = talk(head % coding + b"abc").split(b"\r\n\r\n", 1)
        assert reply.startswith(b"HTTP/1.1 501") and b"connection: close" in reply.lower(), reply
        assert "transfer coding" in json.loads(body)["error"]["message"], body
        assert time.monotonic() - began < 20  # of the 30 seconds that a body has
    # Other refusals do not wait for the body, either.
    tcp = server().tcp()
    tcp.connect()
    began = time.monotonic()
    assert talk(head % b"gzip", tcp.sock).startswith(b"HTTP/1.1 401")
    assert time.monotonic() - began < 20
    chunk = b"19\r\n" + b'{"prompt":"count 97 3\\n"}' + b"\r\n0\r\n\r\n"
    assert b"97 98" in talk(head.replace(b"x", b"x\r\nConnection: close", 1) % b"Chunked" + chunk)


# A body in chunks, which ends before the second request if its length is taken from elsewhere.
SMUGGLED = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"0\r\n\r\n" + SMUGGLED


def assert_ambiguous(headers, version=b"1.1", body=CHUNKED):
    """One reply for all bytes, for every route and without a key, and then the end of the connection."""
    for line in (b"POST /v1/completions", b"GET /health", b"POST /nothing", b"PUT /health", b"HEAD /health"):
        for connection in (server().connection(), server().tcp()):
            connection.connect()
            began = time.monotonic()
            reply = talk(line + b" HTTP/" + version + b"\r\nHost: x\r\n" + headers + b"\r\n\r\n" + body,
                         connection.sock)
            assert time.monotonic() - began < 20, line  # of the 30 seconds that a body has
            head, content = reply.split(b"\r\n\r\n", 1)
            assert reply.count(b"HTTP/1.") == 1 and head.split()[1] == b"400", (line, reply)
            assert b"connection: close" in head.lower(), (line, reply)
            assert line.startswith(b"HEAD") or "is ambiguous" in json.loads(content)["error"]["message"], (line, reply)


def test_header_with_a_blank_at_its_name_is_ambiguous():
    for headers in (b"Transfer-Encoding : chunked", b"Transfer-Encoding\t: chunked", b"Content-Length : 44"):
        assert_ambiguous(headers)


def test_folded_transfer_coding_is_ambiguous():
    assert_ambiguous(b"Transfer-Encoding:\r\n chunked")


def test_folded_length_is_ambiguous():
    assert_ambiguous(b"Content-Length:\r\n 44")


def test_header_whose_name_goes_on_is_another_one():
    with rig.Rig() as own:
        for name in ("Content-Length-Hint", "Transfer-Encoding-Hint"):
            assert own.server.post("/v1/completions", {"prompt": "1+1=", "max_tokens": 2},
                                   headers={name: "3"}).status == 200, name


def test_length_of_a_body_in_chunks_is_ambiguous():
    for length in (b"5", b"44", b"99999999999"):
        assert_ambiguous(b"Content-Length: " + length + b"\r\nTransfer-Encoding: chunked")
        assert_ambiguous(b"Transfer-Encoding: chunked\r\nContent-Length: " + length)


def test_body_in_chunks_of_http_1_0_is_ambiguous():
    assert_ambiguous(b"Connection: keep-alive\r\nTransfer-Encoding: chunked", b"1.0")


def test_several_lengths_are_ambiguous():
    for second in (b"0", b"44"):
        assert_ambiguous(b"Content-Length: 0\r\nContent-Length: " + second, body=SMUGGLED)


def test_several_transfer_codings_are_ambiguous():
    for second in (b"chunked", b"x"):
        assert_ambiguous(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: " + second)


def test_transfer_coding_with_a_blank_behind_it_is_refused_as_such():
    reply, body = talk(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked \r\n\r\n" +
                       CHUNKED).split(b"\r\n\r\n", 1)
    assert reply.startswith(b"HTTP/1.1 501") and b"connection: close" in reply.lower(), reply
    assert "'chunked' with a blank behind it is not supported" in json.loads(body)["error"]["message"], body


def test_client_of_http_1_0_gets_a_stream_that_ends_with_the_connection():
    body = json.dumps({"prompt": "count 97 3\n", "temperature": 0, "stream": True})
    reply = talk(f"POST /v1/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    assert reply.endswith(b"data: [DONE]\n\n") and b"chunked" not in reply


def test_client_that_expects_to_go_on_is_told_so_or_refused():
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n"
    sock = server().raw()
    sock.sendall(head.format(20).encode())
    assert sock.recv(100).startswith(b"HTTP/1.1 100")
    assert talk(head.format(1 << 30).encode()).startswith(b"HTTP/1.1 413")


# ---- all connections in use ----

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def test_connection_that_becomes_idle_makes_room():
    with rig.Rig(["--max-connections", "2", "--idle-seconds", "600"]) as own:
        own.daemon.hold()
        busy = [begin(own, "/v1/completions", prompt="count 97 3\n") for _ in range(2)]
        own.daemon.await_metric("mimeo_requests_running", 2)
        waiting = own.server.raw()
        waiting.sendall(HEALTH)
        time.sleep(0.3)  # it is found full
        own.daemon.release()
        assert [rig.Reply(connection.getresponse()).status for connection in busy] == [200, 200]
        assert read_all(waiting).startswith(b"HTTP/1.1 200")


def test_connections_without_a_request_make_room():
    with rig.Rig(["--max-connections", "3", "--receive-seconds", "600"]) as own:
        idle = [own.server.raw() for _ in range(3)]
        for sock in idle[:2]:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        for _ in range(3):
            assert talk(HEALTH, own.server.raw()).startswith(b"HTTP/1.1 200")


def test_connection_without_a_descriptor_is_tried_once_a_second():
    with rig.Rig() as own:
        own.server.await_metric("mimeo_http_open_connections", 1)
        pid = own.server.process.pid
        old = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (4, old[1]))
        waiting = [own.server.raw() for _ in range(3)]
        time.sleep(1.2)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, old)
        for sock in waiting:
            assert talk(HEALTH, sock).startswith(b"HTTP/1.1 200")
        tries = re.findall(r"(\d+) messages like", own.server.log())
        assert "Too many open files" in own.server.log() and sum(map(int, tries)) < 100, tries


def test_connections_leave_descriptors_for_the_process_itself():
    with rig.Rig(start=False) as own:
        own.daemon.start()
        own.server.start(preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96)))
        kept = [own.server.connection() for _ in range(100)]
        for connection in kept:
            assert own.server.get("/health", connection=connection).status == 200
        assert own.server.n_fds() < 80 and "at most 32 connections" in own.server.log()


# ---- all entries of the session in use ----

def begin(own, path, **body):
    """A request whose reply is not read yet."""
    connection = own.server.connection()
    connection.request("POST", path, json.dumps(body))
    return connection


FEW = ["--max-requests", "2", "--max-choices", "1"]


def test_embeddings_that_are_refused_leave_no_sequence_behind():
    with rig.Rig(FEW) as own:
        own.daemon.hold()
        chat = begin(own, "/v1/completions", prompt="count 97 3\n", temperature=0)
        own.server.await_metric("mimeo_http_requests_in_flight", 1)
        for _ in range(3):
            assert own.server.post("/v1/embeddings", {"input": "x"}).status == 429
        own.daemon.release()
        assert rig.Reply(chat.getresponse()).status == 200
        assert own.server.post("/v1/embeddings", {"input": "x"}).status == 200
        own.daemon.await_metric("mimeo_sequences", 0)


def test_embeddings_need_no_more_than_two_entries():
    with rig.Rig(FEW) as own:
        reply = own.server.post("/v1/embeddings", {"input": ["a", "b", "c"]})
        assert reply.status == 200 and len(reply.json()["data"]) == 3, reply.body
        own.daemon.await_metric("mimeo_sequences", 0)


def test_long_input_waits_for_an_entry_between_its_parts():
    with rig.Rig(FEW, ["--max-batch-tokens", "64"]) as own:
        own.daemon.hold()
        embedding = begin(own, "/v1/embeddings", input="x" * 200)
        own.server.await_metric("mimeo_http_requests_in_flight", 1)
        chats = []

        def both_in_flight():  # a chat is refused while the call that opened the sequence has its entry
            chats.append(begin(own, "/v1/completions", prompt="count 97 3\n", max_tokens=500, ignore_eos=True))
            return own.server.metric("mimeo_http_requests_in_flight") == 2

        rig.eventually(both_in_flight, "both are in flight")
        own.daemon.release()
        reply = rig.Reply(embedding.getresponse())
        assert reply.status == 200, reply.body
        assert 200 in [rig.Reply(chat.getresponse()).status for chat in chats]
        own.daemon.await_metric("mimeo_sequences", 0)


def test_schema_lists_every_status_of_the_page():
    page = (rig.SOURCE / "man" / "mimeo-http.8.scd").read_text()
    errors = set(re.findall(r"^\|  (\d+)$", page, re.MULTILINE))
    paths = json.loads((rig.SOURCE / "examples" / "openapi.json").read_text())["paths"]
    listed = {status for path in paths.values() for call in path.values() for status in call["responses"]}
    assert errors and errors - listed == {"405"}, (errors, listed)  # no listed method is refused
    for name, path in paths.items():
        for call in path.values():
            assert ("501" in call["responses"]) == ("requestBody" in call), name


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


# ---- too much ----

def test_body_beyond_the_limit_is_refused_however_it_comes():
    long = b"x" * (1 << 20)
    reply = server().post("/v1/completions", b'{"prompt":"' + long + b'"}')
    assert reply.status == 413 and "1048576" in reply.error()["message"]
    chunked = server().connection()
    chunked.request("POST", "/v1/completions", iter([long, b"more"]), encode_chunked=True,
                    headers={"Transfer-Encoding": "chunked"})
    assert chunked.getresponse().status == 413
    server().await_metric("mimeo_http_body_bytes", 0)


def test_header_beyond_the_limit_is_refused():
    assert server().get("/health", headers={"X": "x" * 8000}).status == 200
    reply = talk(b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"x" * (64 << 10) + b"\r\n\r\n")
    assert reply.startswith((b"HTTP/1.1 431", b"HTTP/1.1 413")), reply[:100]
    reply = talk(b"GET /" + b"x" * (64 << 10) + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert reply.startswith((b"HTTP/1.1 414", b"HTTP/1.1 431")), reply[:100]
    assert_lives()


def test_bodies_that_are_received_at_once_have_a_limit_together():
    with rig.Rig(["--max-body-bytes", "64K", "--max-bodies-bytes", "100K"]) as own:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 65000\r\n\r\n"
        slow = own.server.raw()
        slow.sendall(head + b" " * 60000)
        own.server.await_metric("mimeo_http_body_bytes", 60000)
        reply = own.server.post("/v1/completions", b" " * 60000)
        assert reply.status == 429 and int(reply.headers["Retry-After"]) > 0
        slow.close()
        own.server.await_metric("mimeo_http_body_bytes", 0)
        assert own.server.post("/v1/completions", b" " * 60000).status == 400


def test_connections_beyond_the_limit_wait_for_one_to_end():
    with rig.Rig(["--max-connections", "3"]) as own:
        busy = [own.server.raw() for _ in range(3)]
        waiting = own.server.raw()
        waiting.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        waiting.settimeout(0.3)
        try:
            assert not waiting.recv(100)
        except TimeoutError:
            pass
        busy.pop().close()
        waiting.settimeout(rig.PATIENCE)
        assert waiting.recv(100).startswith(b"HTTP/1.1 200")


def test_connection_that_is_idle_makes_room_for_a_new_one():
    with rig.Rig(["--max-connections", "2"]) as own:
        idle = [own.server.connection() for _ in range(2)]
        for connection in idle:
            assert own.server.get("/health", connection=connection).status == 200
        assert own.server.get("/health").status == 200


def test_requests_beyond_the_limit_are_refused_and_may_come_again():
    with rig.Rig(["--max-requests", "2", "--max-choices", "2"]) as own:
        own.daemon.hold()
        busy = own.server.connection()
        busy.request("POST", "/v1/completions", json.dumps({"prompt": "count 97 3\n", "n": 2, "temperature": 0}))
        own.server.await_metric("mimeo_http_requests_in_flight", 2)
        for reply in (own.server.complete(), own.server.complete(stream=True),
                      own.server.post("/v1/embeddings", {"input": "x"})):
            assert reply.status == 429 and int(reply.headers["Retry-After"]) > 0, reply.body
            assert reply.error()["type"] == "rate_limit_error"
        own.daemon.release()
        assert rig.Reply(busy.getresponse()).status == 200
        assert own.server.complete().status == 200


# ---- too slowly ----

def closed_after(sock, data=b"", every=None):
    """Seconds until the server closes the connection."""
    began = time.monotonic()
    sock.sendall(data)
    sock.settimeout(every or rig.PATIENCE)
    while time.monotonic() < began + rig.PATIENCE:
        try:
            if not sock.recv(65536):
                break
        except TimeoutError:
            try:
                sock.sendall(b"x")
            except OSError:
                break
        except ConnectionResetError:
            break
    else:
        raise AssertionError("the connection stays open")
    return time.monotonic() - began


def test_connection_without_a_request_is_closed_in_time():
    with rig.Rig(["--receive-seconds", "3", "--idle-seconds", "5"]) as own:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
        assert closed_after(own.server.raw()) >= 2.9
        # Bytes that come one by one do not prolong it.
        assert closed_after(own.server.raw(), head, 0.2) >= 2.9
        assert closed_after(own.server.raw(), head + b"\r\n{", 0.2) >= 2.9
        # One that has been served may be idle for longer.
        assert closed_after(own.server.raw(), b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") >= 4.9
        assert own.server.metric("mimeo_http_connections_timed_out_total") >= 3


def test_time_of_a_connection_begins_when_it_is_accepted():
    with rig.Rig(["--receive-seconds", "4"]) as own:
        time.sleep(5)
        sock = own.server.raw()
        time.sleep(0.2)
        assert talk(b"GET /health HTTP/1.0\r\n\r\n", sock).startswith(b"HTTP/1.1 200")


def test_stream_that_is_not_read_is_cancelled():
    with rig.Rig(["--max-pending-bytes", "4K"]) as own:
        body = json.dumps({"prompt": "count 97 3\n", "stream": True, "ignore_eos": True, "max_tokens": 1500,
                           "n": 16})
        sock = own.server.raw()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        own.server.await_metric("mimeo_http_slow_total", 1)
        own.server.await_metric("mimeo_http_requests_in_flight", 0)
        assert own.server.complete().status == 200


def test_reply_that_is_not_read_is_given_up_in_time():
    with rig.Rig(["--send-seconds", "1"]) as own:
        body = json.dumps({"prompt": ["count 97 3\n"] * 16, "logprobs": 20, "ignore_eos": True, "max_tokens": 100})
        sock = own.server.raw()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        own.server.await_metric("mimeo_http_connections_timed_out_total", 1)
        assert own.server.complete().status == 200


def test_reply_that_is_read_slowly_arrives():
    with rig.Rig(["--send-seconds", "2"]) as own:
        body = json.dumps({"prompt": ["count 97 3\n"] * 16, "logprobs": 20, "ignore_eos": True, "max_tokens": 100})
        sock = own.server.raw()
        sock.sendall(f"POST /v1/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        reply = sock.recv(4096)
        for _ in range(10):
            time.sleep(0.3)
            reply += sock.recv(32 << 10, socket.MSG_WAITALL)
        reply += read_all(sock)
        head, content = reply.split(b"\r\n\r\n", 1)
        assert len(json.loads(content)["choices"]) == 16, len(reply)


if __name__ == "__main__":
    rig.run(sys.modules[__name__])
