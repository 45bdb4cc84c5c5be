/* SPDX-License-Identifier: MIT */
#include "ipc/handle.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

/* The layout in handle.h. */
struct handle_wire {
	uint32_t kind, zero;
	uint8_t uuid[16];
	uint64_t bytes, offset;
	uint8_t opaque[64];
};
_Static_assert(sizeof(struct handle_wire) == HANDLE_WIRE_BYTES, "no padding");
_Static_assert(offsetof(struct handle_wire, opaque) == 40, "the layout in handle.h");

static bool handle_is_zero(const uint8_t *bytes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (bytes[i] != 0)
			return false;
	return true;
}

enum handle_refusal handle_check(const struct mimeo_handle *handle)
{
	bool no_uuid = handle_is_zero(handle->uuid, sizeof(handle->uuid));
	bool no_opaque = handle_is_zero(handle->opaque, sizeof(handle->opaque));
	uint64_t end;

	if (handle->kind < MIMEO_HANDLE_MEMFD || handle->kind > MIMEO_HANDLE_CUDA_IPC)
		return HANDLE_KIND;
	if (handle->bytes == 0 || __builtin_add_overflow(handle->offset, handle->bytes, &end) ||
		end > INT64_MAX)
		return HANDLE_SIZE;
	if (no_uuid != (handle->kind == MIMEO_HANDLE_MEMFD))
		return HANDLE_UUID;
	if (no_opaque != handle_has_fd(handle))
		return HANDLE_OPAQUE;
	return HANDLE_OK;
}

const char *handle_refusal_text(enum handle_refusal refusal)
{
	static const char *const texts[] = {
		[HANDLE_OK] = "a valid handle",
		[HANDLE_LENGTH] = "not as long as a handle",
		[HANDLE_KIND] = "an unknown kind of handle",
		[HANDLE_PADDING] = "padding that is not zero",
		[HANDLE_SIZE] = "an impossible size or offset",
		[HANDLE_UUID] = "a device uuid that does not suit the kind",
		[HANDLE_OPAQUE] = "opaque bytes that do not suit the kind",
	};

	assert((size_t)refusal < sizeof(texts) / sizeof(texts[0]));
	return texts[refusal];
}

bool handle_has_fd(const struct mimeo_handle *handle)
{
	return handle->kind == MIMEO_HANDLE_MEMFD || handle->kind == MIMEO_HANDLE_VMM_FD;
}

void handle_encode(const struct mimeo_handle *handle, uint8_t ret[static HANDLE_WIRE_BYTES])
{
	struct handle_wire wire = {
		.kind = htole32(handle->kind),
		.bytes = htole64(handle->bytes),
		.offset = htole64(handle->offset),
	};

	memcpy(wire.uuid, handle->uuid, sizeof(wire.uuid));
	memcpy(wire.opaque, handle->opaque, sizeof(wire.opaque));
	memcpy(ret, &wire, sizeof(wire));
}

enum handle_refusal handle_decode(const void *data, size_t size, struct mimeo_handle *ret)
{
	struct handle_wire wire;

	if (size != sizeof(wire))
		return HANDLE_LENGTH;
	memcpy(&wire, data, sizeof(wire));
	if (wire.zero != 0)
		return HANDLE_PADDING;

	struct mimeo_handle handle = {
		.size = sizeof(handle),
		.kind = le32toh(wire.kind),
		.fd = -1,
		.bytes = le64toh(wire.bytes),
		.offset = le64toh(wire.offset),
	};
	memcpy(handle.uuid, wire.uuid, sizeof(wire.uuid));
	memcpy(handle.opaque, wire.opaque, sizeof(wire.opaque));

	enum handle_refusal refusal = handle_check(&handle);
	if (refusal == HANDLE_OK)
		*ret = handle;
	return refusal;
}
