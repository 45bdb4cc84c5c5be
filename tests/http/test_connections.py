#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""More connections than there may be, and connections that take too long."""
import json
import re
import resource
import socket
import sys
import time

import rig
from wire import begin, read_all, talk


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
