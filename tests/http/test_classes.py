#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""--classes: users and groups whose requests over the Unix socket have a class, seen by what mimeod starts first."""
import ctypes
import errno
import grp
import json
import os
import pwd
import select
import socket
import struct
import subprocess
import sys
import traceback

import rig

USER, GROUP, OTHER_GROUP = 12345, 1, 2  # the user needs no entry in /etc/passwd
LONG = {"prompt": "count 97 3\n", "ignore_eos": True, "max_tokens": 1000}
SHORT = {**LONG, "max_tokens": 5}
GETSOCKOPT = {"x86_64": 55, "aarch64": 209}
HEADERS = {"Authorization": f"Bearer {rig.KEY}"}


class ClassRig(rig.Rig):
    """Sockets that other users can connect to, and a mimeod with few slots."""

    def __init__(self, classes, slots=1):
        super().__init__(["--socket-mode", "0666"] + (["--classes", classes] if classes else []),
                         ["--max-requests", str(slots)], start=False)
        self.folder.chmod(0o711)
        self.daemon.start()
        self.server.start()
        self.begun = []  # a connection that is not kept would be closed

    def begin(self, body, connection=None, path="/v1/completions"):
        """A request that is at mimeod, and whose reply is not read."""
        connection = connection or self.server.connection()
        connection.request("POST", path, json.dumps(body), HEADERS)
        self.begun.append(connection)
        self.server.await_metric("mimeo_http_requests_in_flight", len(self.begun))
        return connection

    def client(self, uid, gid=65534, groups=()):
        """A connection that was made by another user: its credentials are those of connect(2)."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            pid = os.fork()
            if pid == 0:
                try:
                    os.setgroups(groups)
                    os.setgid(gid)
                    os.setuid(uid)
                    sock = self.server.raw()
                    socket.send_fds(theirs, [b"x"], [sock.fileno()])
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
            _, status = os.waitpid(pid, 0)
            assert status == 0, (uid, gid, groups, status)
            _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
        connection = self.server.connection()
        connection.sock = socket.socket(fileno=fd)
        connection.sock.settimeout(rig.PATIENCE)
        return connection

    def first(self, *connections):
        """Those that have a reply as soon as one has."""
        self.daemon.release()
        ready, _, _ = select.select([c.sock for c in connections], [], [], rig.PATIENCE)
        return [c for c in connections if c.sock in ready]

    def forget(self):
        for connection in self.begun:
            connection.close()
        self.begun = []
        self.server.await_metric("mimeo_http_requests_in_flight", 0)
        # A slot returns with the last step that names it, which a hold would delay.
        self.daemon.await_metric("mimeo_slots_free", 1)

    def overtakes(self, connection, path="/v1/completions", body=SHORT, other=None):
        """Does a request overtake a long one, of this user over the Unix socket, that waits for the only slot?"""
        self.daemon.hold()
        self.begin(SHORT)
        self.daemon.await_metric("mimeo_requests_running", 1)
        other = self.begin(LONG, other)
        late = self.begin(body, connection, path)
        # If it does not, it is replied to soon behind the long one: both may be found.
        first = self.first(other, late)
        if late in first:
            reply = rig.Reply(late.getresponse())
            assert reply.status == 200, reply.body
        self.forget()
        return first == [late]


def needs_root():
    if os.geteuid() == 0:
        return True
    print("# skipped: classes of other users: only root can become another user")
    return False


def test_interactive_user_overtakes_others_on_each_endpoint():
    if not needs_root():
        return
    with ClassRig(f"{USER}:interactive") as own:
        for path, body in (("/v1/completions", SHORT), ("/v1/completions", {**SHORT, "stream": True}),
                           ("/v1/embeddings", {"input": "x"}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5})):
            assert own.overtakes(own.client(USER), path, body), path


def test_batch_user_waits_for_others():
    if not needs_root():
        return
    with ClassRig(f"{USER}:batch", slots=2) as own:
        own.daemon.hold()
        # One batch request has the rights of a normal one: the second one waits.
        batch = own.begin(LONG, own.client(USER))
        own.begin(SHORT)
        own.daemon.await_metric("mimeo_requests_running", 2)
        waiting = own.begin(LONG, own.client(USER))
        normal = own.begin(SHORT)
        assert own.first(batch, waiting, normal) == [normal]


def test_group_gives_its_members_a_class():
    if not needs_root():
        return
    with ClassRig(f"@{grp.getgrgid(GROUP).gr_name}:interactive") as own:
        assert own.overtakes(own.client(USER, GROUP))
        assert own.overtakes(own.client(USER, groups=[OTHER_GROUP, GROUP]))
        assert not own.overtakes(own.client(USER, OTHER_GROUP))


def test_own_entry_goes_before_groups_and_the_first_group_before_others():
    if not needs_root():
        return
    for classes, wins in ((f"@{GROUP}:normal,{USER}:interactive", True),
                          (f"@{OTHER_GROUP}:interactive,@{GROUP}:normal", True),
                          (f"@{GROUP}:normal,@{OTHER_GROUP}:interactive", False)):
        with ClassRig(classes) as own:
            assert own.overtakes(own.client(USER, GROUP, [OTHER_GROUP])) == wins, classes


def test_user_is_found_by_name_and_without_an_entry_is_normal():
    if not needs_root():
        return
    user = pwd.getpwuid(1)
    with ClassRig(f"{user.pw_name}:interactive") as own:
        assert own.overtakes(own.client(user.pw_uid))
        assert not own.overtakes(own.client(USER))
    with ClassRig(None) as own:
        assert not own.overtakes(own.client(USER))


def refuse_getsockopt(option, error):
    """From now on getsockopt(2) fails with this error for this option of SOL_SOCKET: seccomp(2)."""
    number = GETSOCKOPT[os.uname().machine]
    load, equal, ret = 0x20, 0x15, 0x06  # of 32 bits
    program = b"".join(struct.pack("HBBI", *step) for step in (
        (load, 0, 0, 0), (equal, 0, 5, number),
        (load, 0, 0, 16 + 8), (equal, 0, 3, socket.SOL_SOCKET),
        (load, 0, 0, 16 + 16), (equal, 0, 1, option),
        (ret, 0, 0, 0x00050000 | error),  # SECCOMP_RET_ERRNO
        (ret, 0, 0, 0x7fff0000)))         # SECCOMP_RET_ALLOW
    buffer = ctypes.create_string_buffer(program)
    header = struct.pack("HP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP with SECCOMP_MODE_FILTER
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, header) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def test_look_up_of_a_client_that_fails_is_logged():
    if os.uname().machine not in GETSOCKOPT:
        print("# skipped: failing look-ups: the number of getsockopt is not known on this machine")
        return
    peercred, peergroups = 17, 59
    for option, error, text in ((peercred, errno.EPERM, "the user of a client cannot be read"),
                                (peergroups, errno.ENOPROTOOPT, "the groups of a client cannot be read")):
        with rig.Rig(["--classes", f"@{OTHER_GROUP}:batch"], start=False) as own:
            own.daemon.start()
            own.server.start(preexec=lambda: refuse_getsockopt(option, error))
            assert own.server.complete(max_tokens=5).status == 200
            assert f"{text}: {os.strerror(error)}" in own.server.log(), own.server.log()
    # Groups that no entry names are not looked up.
    with rig.Rig(["--classes", f"{USER}:batch"], start=False) as own:
        own.daemon.start()
        own.server.start(preexec=lambda: refuse_getsockopt(peergroups, errno.ENOPROTOOPT))
        assert own.server.complete(max_tokens=5).status == 200
        assert "cannot be read" not in own.server.log(), own.server.log()
    with rig.Rig(["--classes", f"@{OTHER_GROUP}:batch"]) as own:
        assert own.server.complete(max_tokens=5).status == 200
        assert "cannot be read" not in own.server.log(), own.server.log()


def test_tcp_is_normal():
    name = pwd.getpwuid(os.geteuid()).pw_name
    with ClassRig(f"{name}:interactive") as own:
        # Both are the same user's.
        assert own.overtakes(own.server.connection(), other=own.server.tcp())
        assert not own.overtakes(own.server.tcp(), other=own.server.tcp())


def test_list_that_is_wrong_is_refused_with_its_entry():
    for text, message in (
            ("", "'' is not USER:CLASS"), ("root", "'root' is not USER:CLASS"), (":batch", "':batch' is not"),
            ("0:batch,", "'' is not"), ("x" * 64 + ":batch", "is not USER:CLASS"),
            ("0:batch,1:fast", "'1:fast': the class must be interactive, normal or batch"),
            ("0:batch,  1:fast", "'1:fast': the class must be interactive, normal or batch"),
            ("0:", "'0:': the class must be"), ("0:batch:normal", "the class must be"),
            ("0:batch 1:batch", "the class must be"),
            ("nosuchuser:batch", "'nosuchuser:batch': there is no user nosuchuser"),
            ("4294967295:batch", "there is no user 4294967295"), ("-1:batch", "there is no user -1"),
            ("@nosuchgroup:batch", "'@nosuchgroup:batch': there is no group nosuchgroup"),
            ("0:batch,root:normal", "'root:normal': an entry before it is for the same user"),
            ("@1:batch,@1:normal", "'@1:normal': an entry before it is for the same group"),
            (",".join(f"{i}:batch" for i in range(257)), "'256:batch': there are 256 entries before it")):
        done = subprocess.run([rig.PROGRAM, "--listen", "unix:/nonexistent/h.sock", "--classes", text],
                              capture_output=True, text=True, timeout=rig.PATIENCE)
        assert done.returncode == 2, (text, done)
        assert done.stderr.startswith("mimeo-http: --classes: ") and done.stderr.count("\n") == 1, done.stderr
        assert message in done.stderr, (message, done.stderr)


def test_list_of_256_entries_is_served():
    with ClassRig(",".join(f"{i}:batch" for i in range(256))) as own:
        assert own.server.complete(max_tokens=5).status == 200


if __name__ == "__main__":
    rig.run(sys.modules[__name__], with_shared=False)
