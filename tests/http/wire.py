# SPDX-License-Identifier: MIT
"""Bytes to the server that a module's tests share, and requests that are not read yet."""
import json
import socket

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


def begin(own, path, **body):
    """A request whose reply is not read yet."""
    connection = own.server.connection()
    connection.request("POST", path, json.dumps(body))
    return connection
