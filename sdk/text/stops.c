/* SPDX-License-Identifier: MIT */
#include "sdk/text/stops.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "sdk/text/utf8.h"

static void stops_prepare(struct stop *stop)
{
	uint32_t overlap = 0;

	for (uint32_t i = 1; i < stop->length; i++) {
		while (overlap > 0 && stop->bytes[i] != stop->bytes[overlap])
			overlap = stop->overlap[overlap - 1];
		overlap += stop->bytes[i] == stop->bytes[overlap];
		stop->overlap[i] = (uint16_t)overlap;
	}
}

int stops_init(struct stops *stops, const char *const *strings, uint32_t n)
{
	*stops = (struct stops){0};
	if (n > MIMEO_TEXT_STOP_MAX || (n > 0 && !strings))
		return MIMEO_E_INVALID;
	stops->stops = calloc(n > 0 ? n : 1, sizeof(*stops->stops));
	if (!stops->stops)
		return MIMEO_E_NO_MEMORY;
	for (uint32_t i = 0; i < n; i++) {
		struct stop *stop = &stops->stops[i];
		size_t length = strings[i] ? strnlen(strings[i], MIMEO_TEXT_STOP_BYTES + 1) : 0;

		if (length == 0 || length > MIMEO_TEXT_STOP_BYTES ||
			utf8_valid(strings[i], length) < length)
			return MIMEO_E_INVALID;
		stop->bytes = malloc(length);
		if (!stop->bytes)
			return MIMEO_E_NO_MEMORY;
		memcpy(stop->bytes, strings[i], length);
		stop->length = (uint32_t)length;
		stops_prepare(stop);
		stops->n++;
	}
	return 0;
}

void stops_deinit(struct stops *stops)
{
	/* the one behind the last is empty or was not finished */
	for (uint32_t i = 0; i < stops->n; i++)
		free(stops->stops[i].bytes);
	free(stops->stops);
	*stops = (struct stops){0};
}

/* True: the string is complete. */
static bool stops_step(struct stop *stop, char byte)
{
	while (stop->matched > 0 && stop->bytes[stop->matched] != byte)
		stop->matched = stop->overlap[stop->matched - 1];
	stop->matched += stop->bytes[stop->matched] == byte;
	assert(stop->matched <= stop->length);
	return stop->matched == stop->length;
}

int stops_push(struct stops *stops, const char *text, size_t length, size_t *ret_end)
{
	for (size_t i = 0; i < length && stops->n > 0; i++) {
		int found = -1;

		for (uint32_t k = 0; k < stops->n; k++) {
			if (stops_step(&stops->stops[k], text[i]) &&
				(found < 0 || stops->stops[k].length > stops->stops[found].length))
				found = (int)k;
		}
		if (found >= 0) {
			*ret_end = i + 1;
			return found;
		}
	}
	return -1;
}

size_t stops_held(const struct stops *stops)
{
	size_t held = 0;

	for (uint32_t k = 0; k < stops->n; k++) {
		if (stops->stops[k].matched > held)
			held = stops->stops[k].matched;
	}
	return held;
}
