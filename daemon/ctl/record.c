/* SPDX-License-Identifier: MIT */
#include "daemon/ctl/record.h"

#include <inttypes.h>
#include <string.h>

#include "daemon/ctl/verbs.h"

/* Print the events from `from` on; the next one's number. 0, or an exit status. */
static int record_print_some(int fd, uint64_t from, FILE *out, uint64_t *ret_next)
{
	const struct ask ask = {.op = "trace", .setting = "read", .request = from, .has_request = true};
	CLEANUP(cleanup_answer) struct answer *answer = NULL;

	int rc = ask_once(fd, &ask, &answer);
	if (rc < 0 || answer->status < 0) {
		fprintf(stderr, "mimeoctl: the trace cannot be read: %s\n", rc < 0 ? strerror(-rc) : answer->text);
		return EXIT_ERROR;
	}
	fputs(answer->text, out);
	*ret_next = answer_count(answer, 0, "next", UINT64_MAX);
	return 0;
}

int record_print(int fd, const struct answer *ended, FILE *out)
{
	const uint64_t end = answer_count(ended, 0, "end", 0);
	uint64_t at = answer_count(ended, 0, "first", 0), next;

	fprintf(out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"lost_events\":\"%" PRIu64 "\"},\"traceEvents\":[\n",
		answer_count(ended, 0, "lost", 0));
	do {
		int status = record_print_some(fd, at, out, &next);
		if (status)
			return status;
		if (next < at || (next == at && at < end)) {
			fprintf(stderr, "mimeoctl: the daemon's answer is not what this version expects\n");
			return EXIT_ERROR;
		}
		at = next;
	} while (at < end);
	fputs("\n]}\n", out);
	if (fflush(out) == 0 && !ferror(out))
		return EXIT_DONE;
	perror("mimeoctl: standard output");
	return EXIT_ERROR;
}
