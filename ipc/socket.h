/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_IPC_SOCKET_H
#define MIMEO_IPC_SOCKET_H

/*
 * Unix stream sockets: paths, length-prefixed messages (uint32 little endian, then that many
 * bytes), file descriptors in SCM_RIGHTS, and the peer as the kernel knows it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#define SOCKET_PATH_MAX 108 /* sun_path, with terminator */
#define SOCKET_FDS_MAX 5
#define SOCKET_LOCK_SUFFIX ".lock" /* behind a socket's path: its lock file */

/* `path`, or if NULL $MIMEO_SOCKET, else $XDG_RUNTIME_DIR/mimeo/mimeod.sock, else
 * /run/mimeo/mimeod.sock. 0, or -ENAMETOOLONG. */
int socket_path(char ret[static SOCKET_PATH_MAX], const char *path);
/* Bytes of that path, also if it is too long. */
size_t socket_path_bytes(const char *path);
/* The operators' socket beside a client socket: "x.sock" -> "x-admin.sock", "x" -> "x-admin". */
int socket_admin_path(char ret[static SOCKET_PATH_MAX], const char *client_path);
/* The monitors' socket, likewise: "x-monitor.sock". */
int socket_monitor_path(char ret[static SOCKET_PATH_MAX], const char *client_path);

/* Connect, blocking for timeout_ms at most. The fd (close-on-exec, blocking), or -errno. */
int socket_connect(const char *path, unsigned timeout_ms);
/* If `path` is the default (no $MIMEO_SOCKET): make its directory, mode 0755, if it is missing. The
 * directory of a configured path is never made. 0 or -errno. */
int socket_folder_make(const char *path);
/* The two halves of listening, for a daemon that checks early whether the path is free and accepts late.
 * Take the lock, a lock file beside the path, so that two daemons cannot race, and remove the socket that a
 * dead daemon left. 0 or -errno: -EADDRINUSE if the socket has a listener or the lock is taken; -ENOTSOCK
 * if the path is another kind of file, which is not changed; -ENOENT if the directory is missing. The lock is
 * held until socket_unlock or the end of the process. */
int socket_lock(const char *path, int *ret_lock_fd);
/* The same for a socket that listens already, because a service manager passed it: it is left alone. */
int socket_lock_passed(const char *path, int *ret_lock_fd);
/* The process that holds or held the lock, as it wrote it into the file; 0: unknown. */
pid_t socket_lock_owner(const char *path);
/* With the lock held, bind and listen, mode 0660. The listening fd (close-on-exec, nonblocking), or -errno
 * as above. If the kernel supports it, clients can send no descriptors until socket_pass_rights allows it. */
int socket_bind(const char *path);
/* Remove the lock file and release the lock. -1 is ignored. */
void socket_unlock(const char *path, int lock_fd);

/* For sockets of untrusted peers. Out-of-band bytes come in line: otherwise they, and the descriptors
 * that they carry, would be lost when others are received. */
void socket_keep_order(int fd);
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif
/* Allow or forbid that peers send descriptors to the socket or, for a listener, to the sockets that it
 * accepts; if forbidden, their send fails with EPERM. Before Linux 6.16 it cannot be forbidden. */
void socket_pass_rights(int fd, bool pass);

struct socket_peer {
	uid_t uid;
	pid_t pid;
	int pidfd; /* owned by the caller; -1 where the kernel has none */
};
int socket_peer(int fd, struct socket_peer *ret);

/* Send one message with up to SOCKET_FDS_MAX fds. For blocking callers (client, admin tools);
 * the fds stay the caller's. 0 or -errno: -EMSGSIZE above MSG_SOCKET_MAX, -EPIPE without a reader.
 */
int socket_send(int fd, const void *data, size_t size, const int *fds, size_t n_fds);
/* The same without waiting: -EAGAIN if the socket has no space for all of it; the stream is then
 * unusable. */
int socket_send_now(int fd, const void *data, size_t size, const int *fds, size_t n_fds);
/* Are the n bytes received so far a message? 1 and the number of bytes after its length field; 0 if some are
 * missing; -EMSGSIZE if the length is 0 or exceeds `most`; -EPROTO if more bytes follow. */
int socket_parse_length(const uint8_t *bytes, size_t n, uint32_t most, uint32_t *ret_length);
/* Receive one message into buffer[size], and fds (close-on-exec, the caller's to close). The length
 * or -errno: -EMSGSIZE if it does not fit, -ECONNRESET on end of file, -ETIMEDOUT, -EPROTO if more
 * than fds_max fds came. If this process has no descriptor left for some that came, the places in
 * ret_fds up to fds_max have -EMFILE. On an error every fd that came is closed, and the stream is
 * unusable. ret_fds and ret_n_fds may be NULL if fds_max is 0. */
ssize_t socket_receive(int fd, void *buffer, size_t size, int *ret_fds, size_t fds_max,
	size_t *ret_n_fds, unsigned timeout_ms);

#endif
