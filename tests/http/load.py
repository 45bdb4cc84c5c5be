#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tokens per second of N connections to mimeo-http beside the same load by the library: for developers.

	MIMEO_BUILD=build-test python3 tests/http/load.py [--model FOLDER] [--connections 64] [--seconds 60]

Each connection asks for completions of different lengths one after another. The library has as many requests in flight
from one process. Whole replies and streams are measured in turns with it, because a machine's speed changes. The client
needs a core of its own beside mimeod and mimeo-http: where it has none, its CPU time is lost to the model.
"""
import argparse
import itertools
import json
import pathlib
import selectors
import socket
import subprocess
import time

import rig

PROMPT = "count 97 12\n"


def request_of(length, stream):
    body = json.dumps({"prompt": PROMPT, "max_tokens": length, "ignore_eos": True, "temperature": 0,
                       "stream": stream})
    return f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def requests_of(arguments, stream):
    """Requests without end, made beforehand; lengths as in sdk_load.c."""
    n = (arguments.max_tokens + 1) // 2
    made = [request_of(arguments.max_tokens // 2 + 1 + i, stream) for i in range(n)]
    return (made[i * 7919 % n] for i in itertools.count())


class Connection:
    def __init__(self, path, requests):
        self.requests, self.buffer = requests, b""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(path)
        self.sock.sendall(next(requests))

    def read(self, stream):
        """Receive, and ask again when the reply is whole."""
        part = self.sock.recv(1 << 16)
        assert part, self.buffer[-500:]
        self.buffer += part
        if stream:
            done = self.buffer.endswith(b"0\r\n\r\n")
            self.buffer = self.buffer[-8:]
        else:
            head, split, body = self.buffer.partition(b"\r\n\r\n")
            done = split and len(body) >= int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        if done:
            self.buffer = b""
            self.sock.sendall(next(self.requests))


def measure_http(own, arguments, stream):
    """(tokens per second, mimeo-http's and this process' CPU time for a token in us)"""
    requests = requests_of(arguments, stream)
    selector = selectors.DefaultSelector()
    connections = [Connection(str(own.server.path), requests) for _ in range(arguments.connections)]
    for connection in connections:
        selector.register(connection.sock, selectors.EVENT_READ, connection)
    # An event of a stream may have several tokens, and a token may have no text.
    n = own.server.metric("mimeo_http_completion_tokens_total")
    began, cpu, client = time.monotonic(), own.server.cpu_seconds(), time.process_time()
    while time.monotonic() < began + arguments.seconds:
        for key, _ in selector.select(1):
            key.data.read(stream)
    n = own.server.metric("mimeo_http_completion_tokens_total") - n
    elapsed, cpu, client = time.monotonic() - began, own.server.cpu_seconds() - cpu, time.process_time() - client
    for connection in connections:
        connection.sock.close()
    own.server.await_metric("mimeo_http_requests_in_flight", 0)
    return n / elapsed, cpu / max(n, 1) * 1e6, client / max(n, 1) * 1e6


def measure_sdk(own, arguments):
    ids = own.server.post("/tokenize", {"prompt": PROMPT}).json()["tokens"]
    done = subprocess.run([str(rig.BUILD / "tests" / "http" / "sdk_load"), str(own.daemon.socket),
                           str(arguments.connections), str(arguments.seconds), str(arguments.max_tokens),
                           *map(str, ids)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.max_tokens < 1:
        parser.error("--max-tokens must be at least 1")
    options = ["--capture-sizes", "1,2,4,8,16,32,64", "--kv-pages", "4096", "--max-requests", "64"]
    with rig.Rig(daemon_options=options, model=arguments.model) as own:
        for _ in range(arguments.turns):
            sdk = measure_sdk(own, arguments)
            print(f"library: {sdk:.1f} tokens/s", flush=True)
            for stream in (False, True):
                rate, cpu, client = measure_http(own, arguments, stream)
                print(f"{'streams' if stream else 'whole replies'}: {rate:.1f} tokens/s ({100 * rate / sdk:.1f} %), "
                      f"CPU time a token: mimeo-http {cpu:.1f} us, this client {client:.1f} us", flush=True)


if __name__ == "__main__":
    main()
