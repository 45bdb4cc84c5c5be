/* SPDX-License-Identifier: MIT */
#include <errno.h>

#include "daemon/model/error.h"
#include "daemon/model/upload.h"

int upload_device_failed(struct model_error *error, const char *directory, const char *what, int rc)
{
	return model_fail(error,
		rc == DEVICE_E_MEMORY ? -ENOMEM
		: rc < 0              ? rc
				      : -EIO,
		"%s: %s: %s", directory, what, device_strerror(rc));
}

int upload_failed(const struct upload *upload, int rc)
{
	return upload_device_failed(
		upload->error, upload->directory, "weights cannot be uploaded", rc);
}
