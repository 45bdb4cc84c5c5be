/* SPDX-License-Identifier: MIT */
/* The sockets, and what a daemon that answers says of itself. */
#include "daemon/ctl/doctor.h"

#include <errno.h>
#include <grp.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/ctl/ask.h"
#include "daemon/ctl/reach.h"
#include "daemon/ctl/users.h"

/* May this user connect to the socket? The group that it has, for a remedy. */
static void daemon_look_permissions(struct doctor *doctor, const char *client)
{
	char user[64], todo[FINDINGS_TEXT_MAX];
	struct stat stat_of;

	if (stat(client, &stat_of) < 0) {
		if (errno == ENOENT)
			return;
		findings_add(doctor, FINDING_WARN, "socket", "%.100s: %s", client, strerror(errno));
		findings_explain(doctor, "clients of this user cannot attach",
			"make the directories above it searchable for those who may");
		return;
	}
	const struct group *group = getgrgid(stat_of.st_gid);
	users_name(stat_of.st_uid, user, sizeof(user));
	if (access(client, R_OK | W_OK) == 0) {
		findings_ok(doctor, "socket", "%.100s: mode %04o, user %s, group %s", client,
			(unsigned)stat_of.st_mode & 07777, user, group ? group->gr_name : "?");
		return;
	}
	findings_add(doctor, FINDING_WARN, "socket", "%.100s: mode %04o, user %s, group %s", client,
		(unsigned)stat_of.st_mode & 07777, user, group ? group->gr_name : "?");
	snprintf(todo, sizeof(todo), "usermod --append --groups %s NAME, and log in again",
		group ? group->gr_name : "GROUP");
	findings_explain(doctor, "clients of this user cannot attach", todo);
}

static void daemon_look_status(struct doctor *doctor, const struct answer *status)
{
	char state[32], device[64], loop[32], reason[96];

	answer_text(status, 0, "state", state, sizeof(state));
	answer_text(status, 0, "device", device, sizeof(device));
	answer_text(status, 0, "loop", loop, sizeof(loop));
	answer_text(status, 0, "loop_reason", reason, sizeof(reason));
	if (strcmp(state, "failed") == 0) {
		findings_add(doctor, FINDING_WARN, "daemon", "pid %d: its device failed", (int)doctor->daemon);
		findings_explain(doctor, "every request ends with MIMEO_E_DEVICE_LOST",
			"look for Xid in the kernel's log, and restart mimeod");
	} else {
		findings_ok(doctor, "daemon", "pid %d: %s%s%s", (int)doctor->daemon, state[0] ? state : "loading",
			device[0] ? ", device " : "", device);
	}
	if (strcmp(loop, "epoll") != 0)
		return;
	findings_add(doctor, FINDING_WARN, "daemon's loop", "epoll%s%s", reason[0] ? ": " : "", reason);
	findings_explain(doctor, "a system call more for each wake-up",
		reason[0] ? "see the finding io_uring" : "loop = auto in mimeod.conf(5)");
}

/* The peer of a socket that a service manager made is the manager. What the daemon says of its pid counts in its own
 * namespace only. */
static void daemon_correct_pid(struct doctor *doctor, const struct answer *status)
{
	char path[48], comm[32];

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)doctor->daemon);
	if (doctor->daemon && findings_read(doctor, path, comm, sizeof(comm)) && strcmp(comm, "systemd") == 0)
		doctor->daemon = (pid_t)answer_count(status, 0, "pid", 0);
}

static void daemon_ask(struct doctor *doctor, int fd)
{
	CLEANUP(cleanup_answer) struct answer *status = NULL;
	struct socket_peer peer = {.pidfd = -1};

	if (socket_peer(fd, &peer) == 0) {
		doctor->daemon = peer.pid;
		cleanup_close(&peer.pidfd);
	}
	doctor->answers = true;
	if (ask_once(fd, &(struct ask){.op = "status"}, &status) == 0) {
		daemon_correct_pid(doctor, status);
		daemon_look_status(doctor, status);
		return;
	}
	findings_add(doctor, FINDING_WARN, "daemon", "pid %d does not answer", (int)doctor->daemon);
	findings_explain(doctor, "clients wait", "see its log, and whether it is stopped");
}

void doctor_look_daemon(struct doctor *doctor)
{
	char client[SOCKET_PATH_MAX], admin[SOCKET_PATH_MAX];

	if (reach_paths(doctor->socket, client, admin) < 0) {
		findings_add(doctor, FINDING_WARN, "socket", "the path is empty or too long");
		findings_explain(doctor, "", "name the daemon's socket with --socket");
		return;
	}
	daemon_look_permissions(doctor, client);
	CLEANUP(cleanup_close) int fd = reach_quietly(doctor->socket, admin);
	if (fd >= 0) {
		daemon_ask(doctor, fd);
	} else if (fd == -EACCES) {
		findings_add(doctor, FINDING_NOTE, "daemon", "this user may not ask it");
		findings_explain(doctor, "limits and namespaces of the daemon's process are not examined",
			"run mimeoctl doctor as root or as the user that mimeod runs as");
	} else if (fd == -ECONNREFUSED) {
		findings_add(doctor, FINDING_WARN, "daemon", "%.100s: nobody listens there", admin);
		findings_explain(doctor, "clients cannot attach", "see why mimeod ended, in its log, and start it");
	} else {
		findings_add(doctor, FINDING_NOTE, "daemon", "none on %.100s (%s)", admin, strerror(-fd));
		findings_explain(doctor, "", "start mimeod, or name its socket with --socket");
	}
}
