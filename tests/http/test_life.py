#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Clients that leave, a daemon that comes and goes, and the end of the process itself."""
import json
import os
import signal
import socket
import sys
import time

import rig

LONG = {"prompt": "count 97 3\n", "ignore_eos": True, "max_tokens": 1500}
IN_FLIGHT = "mimeo_http_requests_in_flight"


def begin(own, path="/v1/completions", body=LONG, connection=None, **fields):
    """A request whose reply is not read."""
    connection = connection or own.server.connection()
    connection.request("POST", path, json.dumps({**body, **fields}),
                       {"Authorization": f"Bearer {rig.KEY}"})
    return connection


def await_in_flight(own, n):
    own.server.await_metric(IN_FLIGHT, n)


def assert_answers(own):
    assert own.server.complete().json()["choices"][0]["text"] == "97 98 99"


# ---- clients that leave ----

def test_request_of_a_client_that_disconnects_is_cancelled():
    with rig.Rig() as own:
        own.daemon.hold()
        n = 0
        for connection in (own.server.connection, own.server.tcp):
            for fields in ({}, {"stream": True}, {"n": 3}):
                leaving = begin(own, connection=connection(), **fields)
                await_in_flight(own, fields.get("n", 1))
                leaving.close()
                own.daemon.release()
                await_in_flight(own, 0)
                own.daemon.hold()
                n += 1
                own.server.await_metric("mimeo_http_cancelled_total", n)
        leaving = begin(own, "/v1/embeddings", {"input": ["x"] * 100})
        await_in_flight(own, 32)
        leaving.close()
        own.daemon.release()
        await_in_flight(own, 0)
        assert_answers(own)
        own.daemon.await_metric("mimeo_requests_running", 0)


def test_stream_of_a_client_that_disconnects_in_the_middle_is_cancelled():
    with rig.Rig() as own:
        leaving = begin(own, stream=True, n=4)
        reply = leaving.getresponse()
        assert reply.read(100).startswith(b"data: ")
        reply.close()
        leaving.close()
        await_in_flight(own, 0)
        assert own.server.metric("mimeo_http_cancelled_total") == 1
        assert own.server.metric("mimeo_http_completion_tokens_total") < 4 * 1500
        assert_answers(own)


def test_client_that_leaves_while_its_stream_is_full_is_noticed():
    with rig.Rig(["--max-pending-bytes", "1G"]) as own:
        leaving = begin(own, stream=True, n=16)
        rig.eventually(lambda: own.server.metric("mimeo_http_completion_tokens_total") > 4000, "the socket is full")
        own.daemon.hold()
        leaving.sock.shutdown(socket.SHUT_WR)
        own.server.await_metric("mimeo_http_cancelled_total", 1)
        own.daemon.release()
        await_in_flight(own, 0)


def test_client_that_left_before_its_request_was_read_is_noticed():
    with rig.Rig() as own:
        own.daemon.hold()
        body = json.dumps(LONG)
        own.server.signal(signal.SIGSTOP)
        leaving = own.server.raw()
        leaving.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        leaving.shutdown(socket.SHUT_WR)
        own.server.signal(signal.SIGCONT)
        assert leaving.recv(1) == b""
        own.daemon.release()
        own.server.await_metric("mimeo_http_cancelled_total", 1)
        await_in_flight(own, 0)


def test_clients_that_leave_at_any_moment_leave_nothing_behind():
    with rig.Rig() as own:
        assert_answers(own)
        own.server.await_metric("mimeo_http_open_connections", 1)
        n_fds = own.server.n_fds()
        for i in range(60):
            connection = own.server.raw()
            body = json.dumps({**LONG, "stream": i % 2 == 0, "max_tokens": 50})
            text = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            connection.sendall(text.encode()[:len(text) * (i % 20 + 1) // 20])
            if i % 3 == 0:
                time.sleep(0.002 * (i % 7))
            connection.close()
        await_in_flight(own, 0)
        own.server.await_metric("mimeo_http_open_connections", 1)
        rig.eventually(lambda: own.server.n_fds() <= n_fds, "all descriptors are closed")
        assert own.server.metric("mimeo_http_body_bytes") == 0
        assert_answers(own)


# ---- idle ----

def test_1000_idle_connections_cost_no_cpu_time():
    with rig.Rig(["--max-connections", "1100"]) as own:
        idle = []
        for _ in range(1000):
            connection = own.server.connection()
            assert own.server.get("/health", connection=connection).status == 200
            idle.append(connection)
        before = own.server.cpu_seconds()
        time.sleep(2)
        used = own.server.cpu_seconds() - before
        assert used <= 0.02, used
        assert own.server.get("/health", connection=idle[500]).status == 200


# ---- mimeod ----

def test_without_mimeod_requests_are_refused_until_it_comes():
    with rig.Rig(start=False) as own:
        own.server.start(ready=False)
        for reply in (own.server.get("/health"), own.server.complete(), own.server.get("/v1/models"),
                      own.server.chat(), own.server.post("/tokenize", {"prompt": "x"})):
            assert reply.status == 503 and int(reply.headers["Retry-After"]) > 0
            assert reply.error()["type"] == "server_error"
        assert own.server.metric("mimeo_http_daemon_connected") == 0
        own.daemon.start()
        rig.eventually(lambda: own.server.get("/health").status == 200, "it is connected")
        assert_answers(own)


def test_requests_of_a_mimeod_that_is_killed_fail_and_later_ones_succeed():
    with rig.Rig() as own:
        own.daemon.hold()
        waiting = [begin(own), begin(own, n=3), begin(own, "/v1/embeddings", {"input": "x"})]
        await_in_flight(own, 5)
        own.daemon.kill()
        for connection in waiting:
            reply = rig.Reply(connection.getresponse())
            assert reply.status == 503 and int(reply.headers["Retry-After"]) > 0
        rig.eventually(lambda: own.server.get("/health").status == 503, "its end is noticed")
        own.daemon.release()
        own.daemon.start()
        rig.eventually(lambda: own.server.get("/health").status == 200, "it is connected again")
        assert own.server.metric("mimeo_http_daemon_connections_total") == 2
        assert_answers(own)


def test_stream_of_a_mimeod_that_is_killed_ends_with_an_error():
    with rig.Rig() as own:
        connection = begin(own, stream=True)
        reply = connection.getresponse()
        assert reply.read(100).startswith(b"data: ")
        own.daemon.kill()
        *_, error, done, rest = reply.read().split(b"\n\n")
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "unavailable"
        assert done == b"data: [DONE]" and rest == b""


def test_mimeod_that_drains_takes_no_new_requests():
    with rig.Rig() as own:
        own.daemon.hold()
        waiting = begin(own, max_tokens=5)
        own.daemon.await_metric("mimeo_requests_running", 1)
        own.daemon.signal(signal.SIGTERM)
        rig.eventually(lambda: "draining" in own.daemon.log(), "it drains")
        reply = rig.Reply(begin(own, max_tokens=5).getresponse())
        assert reply.status == 503 and reply.error()["code"] == "draining", reply.body
        assert int(reply.headers["Retry-After"]) > 0
        own.daemon.release()
        assert rig.Reply(waiting.getresponse()).status == 200
        assert own.daemon.wait() == 0


# ---- mimeo-http itself ----

def test_killed_mimeo_http_leaves_nothing_at_mimeod():
    with rig.Rig() as own:
        own.daemon.hold()
        waiting = [begin(own, n=4), begin(own, stream=True)]
        await_in_flight(own, 5)
        own.server.kill()
        own.daemon.release()
        for connection in waiting:
            connection.close()
        own.daemon.await_metric("mimeo_sessions", 0)
        own.daemon.await_metric("mimeo_requests_running", 0)
        # Its socket is still there, and the next one takes its place.
        assert own.server.path.exists()
        own.server.start()
        assert_answers(own)


def test_second_mimeo_http_does_not_take_the_socket_of_the_first():
    with rig.Rig() as own:
        other = rig.Server(own.folder, own.daemon)
        other.log_path = own.folder / "other.log"
        rig.Process.start(other, [rig.PROGRAM, "--socket", str(own.daemon.socket), "--listen",
                                  f"unix:{own.server.path}"])
        assert other.wait() == 1 and "Address already in use" in other.log()
        assert_answers(own)


def test_sigterm_lets_requests_in_flight_end():
    with rig.Rig() as own:
        own.daemon.hold()
        idle = own.server.raw()
        waiting, stream = begin(own, max_tokens=5), begin(own, max_tokens=5, stream=True)
        await_in_flight(own, 2)
        own.server.signal(signal.SIGTERM)
        assert idle.recv(1) == b""
        rig.eventually(lambda: "ending" in own.server.log(), "it ends")
        try:
            own.server.raw()
            raise AssertionError("a new connection was accepted")
        except (ConnectionRefusedError, FileNotFoundError):
            pass
        own.daemon.release()
        reply = waiting.getresponse()
        assert reply.status == 200 and reply.headers["Connection"] == "close"
        assert rig.Reply(stream.getresponse()).events()
        assert own.server.wait() == 0 and not own.server.path.exists()


def test_sigterm_waits_no_longer_than_the_limit():
    for signals, seconds in ((1, "1"), (2, "600")):
        with rig.Rig(["--drain-seconds", seconds]) as own:
            own.daemon.hold()
            waiting = begin(own)
            await_in_flight(own, 1)
            for _ in range(signals):
                own.server.signal(signal.SIGTERM)
                time.sleep(0.1)
            assert own.server.wait() == 0
            waiting.close()
            own.daemon.release()


def test_request_takes_no_longer_than_the_limit():
    with rig.Rig(["--request-seconds", "1"]) as own:
        for fields in ({}, {"n": 3}, {"stream": True}):
            own.daemon.hold()
            waiting = begin(own, **fields)
            time.sleep(1.2)
            own.daemon.release()
            reply = rig.Reply(waiting.getresponse())
            assert reply.status == 504 and reply.error()["code"] == "timeout", reply.body
            assert reply.error()["message"].endswith("(--request-seconds)"), reply.body


def test_whole_reply_at_the_limit_has_the_tokens_so_far():
    for path, body in (("/v1/completions", {**LONG, "n": 3}),
                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": "count 97 3"}],
                                                 "ignore_eos": True, "max_tokens": 1500})):
        with rig.Rig(["--request-seconds", "3"]) as own:
            waiting = begin(own, path, body)
            rig.eventually(lambda: own.server.metric("mimeo_http_completion_tokens_total") > 0, "it has tokens")
            own.daemon.hold()
            time.sleep(3.2)
            own.daemon.release()
            reply = rig.Reply(waiting.getresponse())
            assert reply.status == 200, reply.body
            for choice in reply.json()["choices"]:
                assert choice["finish_reason"] == "length", reply.body
                assert (choice.get("text") or choice["message"]["content"]).startswith("9"), reply.body
            assert 0 < reply.json()["usage"]["completion_tokens"] < 1500 * len(reply.json()["choices"]), reply.body
            assert_answers(own)


def test_stream_at_the_limit_ends_with_an_error():
    with rig.Rig(["--request-seconds", "2"]) as own:
        waiting = begin(own, stream=True)
        rig.eventually(lambda: own.server.metric("mimeo_http_completion_tokens_total") > 0, "it has tokens")
        own.daemon.hold()
        time.sleep(2.2)
        own.daemon.release()
        *_, last = rig.Reply(waiting.getresponse()).events()
        assert last["error"]["code"] == "timeout", last
        assert last["error"]["message"].endswith("(--request-seconds): a lower max_tokens may help"), last


def test_embedding_that_takes_too_long_has_no_hint_about_tokens():
    with rig.Rig(["--request-seconds", "1"]) as own:
        own.daemon.hold()
        waiting = begin(own)
        own.daemon.await_metric("mimeo_requests_running", 1)
        embedding = begin(own, "/v1/embeddings", {"input": "x"})
        time.sleep(1.2)
        own.daemon.release()
        reply = rig.Reply(embedding.getresponse())
        assert reply.status == 504 and reply.error()["code"] == "timeout", reply.body
        assert reply.error()["message"].endswith("(--request-seconds)"), reply.body


def test_unix_socket_has_the_mode_that_is_asked_for():
    with rig.Rig(["--socket-mode", "0600"]) as own:
        assert own.server.path.stat().st_mode & 0o777 == 0o600
    with rig.Rig() as own:
        assert own.server.path.stat().st_mode & 0o777 == 0o660


def test_sockets_of_a_service_manager_are_served():
    with rig.Rig(start=False) as own:
        own.daemon.start()
        path = str(own.folder / "passed.sock")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        listener.listen(8)
        os.set_inheritable(listener.fileno(), True)

        def passes():
            os.dup2(listener.fileno(), 3)
        program = f'LISTEN_FDS=1 LISTEN_PID=$$ exec {rig.PROGRAM} --socket {own.daemon.socket}'
        rig.Process.start(own.server, ["sh", "-c", program], preexec=passes, pass_fds=(3, listener.fileno()))
        own.server.path = path
        rig.eventually(lambda: "listening" in own.server.log() or own.server.process.poll() is not None, "it runs")
        if "use --listen" in own.server.log():
            print("# skipped: sockets of a service manager: this build has no libsystemd")
            return
        rig.eventually(lambda: own.server.get("/health").status == 200, "it is connected")
        assert_answers(own)
        own.server.signal(signal.SIGTERM)
        assert own.server.wait() == 0
        # The manager's own socket is left where it is.
        assert os.path.exists(path)


def test_addresses_beyond_the_sockets_of_a_service_manager_exit_with_2():
    with rig.Rig(start=False) as own, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(own.folder / "passed.sock"))
        listener.listen(8)
        listed = " ".join(f"--listen unix:{own.folder}/{i}.sock" for i in range(8))
        program = f"LISTEN_FDS=1 LISTEN_PID=$$ exec {rig.PROGRAM} --socket {own.daemon.socket} {listed}"
        rig.Process.start(own.server, ["sh", "-c", program], preexec=lambda: os.dup2(listener.fileno(), 3),
                          pass_fds=(3, listener.fileno()))
        rig.eventually(lambda: "listening" in own.server.log() or own.server.process.poll() is not None, "it runs")
        if "listening" in own.server.log():
            print("# skipped: sockets of a service manager: this build has no libsystemd")
            return
        assert own.server.wait() == 2 and "more than 8 sockets" in own.server.log(), own.server.log()


if __name__ == "__main__":
    rig.run(sys.modules[__name__], with_shared=False)
