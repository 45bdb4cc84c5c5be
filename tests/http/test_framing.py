#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Requests on a connection: one behind the other, in chunks, of two lengths."""
import json
import sys
import time

import rig
from wire import server, talk


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


if __name__ == "__main__":
    rig.run(sys.modules[__name__])
