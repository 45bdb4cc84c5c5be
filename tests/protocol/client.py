#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A client of mimeod in Python alone, written from mimeo_protocol(7).

client.py SOCKET                        prints the models
client.py SOCKET MODEL TOKENS [N]       prints up to N (64) tokens that follow these, separated by commas

Stores to the region must become visible in their order, which x86-64 guarantees. There are no sequentially
consistent operations: each submission rings, and the daemon is asked to ring for each completion.
"""
import array
import fcntl
import mmap
import os
import select
import socket
import struct
import sys

PROTOCOL_VERSION, RING_VERSION, MAGIC = 6, 2, 0x6f656d696d
SEALS, F_GET_SEALS = 0x0001 | 0x0002 | 0x0004, 1034
# Keys of the maps.
MODEL, N_TOKENS, MAX_TOKENS = 1, 15, 3
VERSION, ENTRIES, ARENA_BYTES, WAIT_MS, NAME = 32, 34, 35, 43, 36
MODELS, MODEL_IDS, STATUS, TEXT, MAX_SEQ_LEN = 40, 73, 41, 42, 66
OP_GENERATE = 1
KIND_FINAL = 2
SQE, CQE = struct.Struct("<QIIHHIQIIIIIII"), struct.Struct("<QIIiBBHII4iIII")  # without the stamp
# Words of the control page that are used.
SQ_TAIL, CQ_HEAD, CLIENT_NEED_WAKEUP = 64, 320, 384


class Refused(Exception):
    pass


# ---- MessagePack, as far as the protocol has it ----

def pack(value):
    if isinstance(value, dict):
        assert len(value) < 16
        return bytes([0x80 | len(value)]) + b"".join(pack(k) + pack(v) for k, v in value.items())
    if isinstance(value, str):
        data = value.encode()
        assert len(data) < 32
        return bytes([0xa0 | len(data)]) + data
    if isinstance(value, float):
        return b"\xca" + struct.pack(">f", value)
    return bytes([value]) if 0 <= value < 128 else b"\xcf" + struct.pack(">Q", value)


class Unpacker:
    FIXED = {0xca: ">f", 0xcb: ">d", 0xcc: ">B", 0xcd: ">H", 0xce: ">I", 0xcf: ">Q",
             0xd0: ">b", 0xd1: ">h", 0xd2: ">i", 0xd3: ">q"}
    LENGTHS = {0xd9: ">B", 0xda: ">H", 0xdb: ">I", 0xdc: ">H", 0xdd: ">I", 0xde: ">H", 0xdf: ">I",
               0xc4: ">B", 0xc5: ">H", 0xc6: ">I"}

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        if n > len(self.data) - self.at:
            raise ValueError("a value ends behind its message")
        self.at += n
        return self.data[self.at - n:self.at]

    def number(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def value(self):
        kind = self.take(1)[0]
        if kind < 0x80:
            return kind
        if kind >= 0xe0:
            return kind - 256
        if kind in self.FIXED:
            return self.number(self.FIXED[kind])
        if kind < 0xa0:
            return self.container(kind < 0x90, kind & 15)
        if kind < 0xc0:
            return self.take(kind & 31).decode()
        length = self.number(self.LENGTHS[kind])
        if kind >= 0xdc:
            return self.container(kind >= 0xde, length)
        data = self.take(length)
        return data if kind <= 0xc6 else data.decode()

    def container(self, is_map, n):
        if is_map:
            return {self.value(): self.value() for _ in range(n)}
        return [self.value() for _ in range(n)]


# ---- the socket ----

class Client:
    def __init__(self, path, entries=4, arena_bytes=1 << 20):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self.send({VERSION: PROTOCOL_VERSION, ENTRIES: entries, ARENA_BYTES: arena_bytes, WAIT_MS: 5000,
                   NAME: "client.py"})
        welcome, fds = self.receive()
        if welcome.get(STATUS, 0) < 0:
            raise Refused(f"{welcome[STATUS]}: {welcome.get(TEXT, '')}")
        assert welcome[VERSION] == PROTOCOL_VERSION and welcome[ENTRIES] == entries and len(fds) in (3, 5)
        self.models = {model[NAME]: (id_, model) for id_, model in zip(welcome[MODEL_IDS], welcome[MODELS])}
        self.region_fd, self.sq_bell, self.cq_bell, *self.lives = fds
        self.map(entries, arena_bytes)
        self.sq_index = self.cq_index = self.generation = 0
        self.store(CLIENT_NEED_WAKEUP, 1)

    def send(self, message):
        data = pack(message)
        self.socket.sendall(struct.pack("<I", len(data)) + data)

    def receive(self):
        data, fds, _, _ = socket.recv_fds(self.socket, 4 + 65536, 5)
        more = data
        while more and (len(data) < 4 or len(data) < 4 + struct.unpack_from("<I", data)[0]):
            more = self.socket.recv(65536)
            data += more
        if not more:
            raise Refused("the daemon hung up")
        return Unpacker(data[4:]).value(), fds

    # ---- the region ----

    def map(self, entries, arena_bytes):
        assert fcntl.fcntl(self.region_fd, F_GET_SEALS) & SEALS == SEALS
        self.region = mmap.mmap(self.region_fd, os.fstat(self.region_fd).st_size)
        self.region.madvise(mmap.MADV_DONTFORK)
        sqes, cqes = 4096, 4096 + entries * 64
        cancels = cqes + 2 * entries * 64
        self.arena = (cancels + 4 * entries + 4095) & ~4095
        head = struct.unpack_from("<QIIQQQQQQ", self.region)
        assert head == (MAGIC, RING_VERSION, entries, len(self.region), sqes, cqes, self.arena, arena_bytes, cancels)
        assert len(self.region) == self.arena + arena_bytes
        self.entries, self.sqes, self.cqes = entries, sqes, cqes
        self.words = memoryview(self.region).cast("I")  # a store or load of an item is one access

    def store(self, offset, value):
        self.words[offset // 4] = value & 0xffffffff

    def load(self, offset):
        return self.words[offset // 4]

    # ---- the rings ----

    def submit(self, *fields):
        """One request in flight at a time: there is space."""
        at = self.sqes + self.sq_index % self.entries * 64
        SQE.pack_into(self.region, at, *fields)
        self.store(at + 60, 2 * self.sq_index + 1)
        self.sq_index += 1
        self.store(SQ_TAIL, self.sq_index)
        os.eventfd_write(self.sq_bell, 1)

    def completion(self):
        """The next one; waits for it."""
        at = self.cqes + self.cq_index % (2 * self.entries) * 64
        while self.load(at + 60) != (2 * self.cq_index + 1) & 0xffffffff:
            ready, _, _ = select.select([self.cq_bell, self.socket, *self.lives], [], [])
            if ready == [self.cq_bell]:
                os.eventfd_read(self.cq_bell)
            elif self.load(at + 60) != (2 * self.cq_index + 1) & 0xffffffff:
                raise Refused("the session ended")
        entry = CQE.unpack_from(self.region, at)
        self.cq_index += 1
        return entry

    def took(self):
        self.store(CQ_HEAD, self.cq_index)

    def generate(self, name, tokens, max_tokens):
        """Yields the tokens as they come."""
        if name not in self.models:
            raise Refused(f"no model {name}")
        id_, _ = self.models[name]
        header = pack({MODEL: id_, N_TOKENS: len(tokens), MAX_TOKENS: max_tokens})
        payload = array.array("i", tokens).tobytes()
        output = 1024 + (len(payload) + 63) // 64 * 64
        self.region[self.arena:self.arena + len(header)] = header
        self.region[self.arena + 1024:self.arena + 1024 + len(payload)] = payload
        self.generation += 1
        self.submit(0, 0, self.generation, OP_GENERATE, 0, 0, 0, 0, len(header), 1024, len(payload), output,
                    (4 * max_tokens + 63) // 64 * 64, 0)
        done = 0
        while True:
            _, request, generation, status, kind, _, detail, _, n_generated, *values = self.completion()
            assert (request, generation) == (0, self.generation)
            for i in range(done, n_generated):
                yield struct.unpack_from("<i", self.region, self.arena + output + 4 * i)[0]
            done = n_generated
            self.took()
            if status < 0:
                raise Refused(f"status {status}, detail {detail} {values[:4]}")
            if kind == KIND_FINAL:
                return


def main(path, name=None, tokens="", max_tokens="64"):
    client = Client(path)
    if name is None:
        for model, (id_, facts) in client.models.items():
            print(id_, model, facts[MAX_SEQ_LEN])
        return
    answer = client.generate(name, [int(token) for token in tokens.split(",")], int(max_tokens))
    print(",".join(str(token) for token in answer))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (Refused, OSError) as failure:
        sys.exit(f"client.py: {failure}")
