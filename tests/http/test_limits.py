#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Too many requests at once, and too many bytes."""
import json
import sys

import rig
from wire import assert_lives, begin, server, talk


# ---- all entries of the session in use ----

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


if __name__ == "__main__":
    rig.run(sys.modules[__name__])
