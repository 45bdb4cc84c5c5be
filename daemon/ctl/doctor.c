/* SPDX-License-Identifier: MIT */
#include "daemon/ctl/doctor.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/cleanup.h"

int doctor_run(const char *socket, enum table_form form)
{
	CLEANUP(cleanup_free) struct doctor *doctor = calloc(1, sizeof(*doctor));

	if (!doctor)
		return 2;
	doctor->root = "";
	doctor->socket = socket;
	doctor_look_daemon(doctor);
	doctor_look_gpu(doctor);
	doctor_look_host(doctor);
	int rc = findings_print(doctor, stdout, form);
	if (rc == 0)
		return findings_status(doctor);
	fprintf(stderr, "mimeoctl: cannot write: %s\n", strerror(-rc));
	return 2;
}
