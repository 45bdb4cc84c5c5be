/* SPDX-License-Identifier: MIT */
/*
 * Several processes share one daemon's graphs: each asks a number of questions at once and checks
 * every answer. Prints "name value" lines for examples/quickstart.sh. Sees <mimeo/mimeo.h> only.
 *
 *	quickstart [--socket PATH] [--model NAME] [--processes N] [--questions N] [--seed N]
 *
 * Exit status: 0 if every answer was right, 1 if not, 2 if the command line makes no sense.
 */
#include <mimeo/mimeo.h>

#include <getopt.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define TEXT_MAX 256
#define QUESTIONS_MAX 64
#define PROCESSES_MAX 64

struct question {
	char prompt[TEXT_MAX], answer[TEXT_MAX];
	int32_t tokens[TEXT_MAX];
	char reply[TEXT_MAX];
	size_t reply_length;
	bool ended;
};

struct totals {
	unsigned right, wrong;
	unsigned long tokens;
};

struct shared {
	pthread_barrier_t barrier;
	struct totals totals[PROCESSES_MAX];
};

struct options {
	const char *socket, *model;
	unsigned processes, questions, seed;
};

/* ---- questions whose answers we know ---- */

static unsigned pick(unsigned *state, unsigned n)
{
	*state = *state * 1664525u + 1013904223u;
	return (unsigned)(((unsigned long long)*state * n) >> 32);
}

static void ask_sum(struct question *q, unsigned *state)
{
	unsigned a = pick(state, 1000), b = pick(state, 1000);

	snprintf(q->prompt, TEXT_MAX, "%u+%u=", a, b);
	snprintf(q->answer, TEXT_MAX, "%u", a + b);
}

static void ask_count(struct question *q, unsigned *state)
{
	unsigned from = pick(state, 1000), n = 1 + pick(state, 12), length = 0;

	snprintf(q->prompt, TEXT_MAX, "count %u %u\n", from, n);
	for (unsigned i = 0; i < n; i++)
		length += (unsigned)snprintf(q->answer + length, TEXT_MAX - length, i ? " %u" : "%u", from + i);
}

static void ask_sort(struct question *q, unsigned *state)
{
	unsigned values[8], n = 1 + pick(state, 8), length, answer = 0;

	length = (unsigned)snprintf(q->prompt, TEXT_MAX, "sort");
	for (unsigned i = 0; i < n; i++) {
		unsigned k = i;

		values[i] = pick(state, 100);
		length += (unsigned)snprintf(q->prompt + length, TEXT_MAX - length, " %u", values[i]);
		for (; k && values[k - 1] > values[k]; k--) {
			unsigned swap = values[k];

			values[k] = values[k - 1];
			values[k - 1] = swap;
		}
	}
	snprintf(q->prompt + length, TEXT_MAX - length, "\n");
	for (unsigned i = 0; i < n; i++)
		answer += (unsigned)snprintf(q->answer + answer, TEXT_MAX - answer, i ? " %u" : "%u", values[i]);
}

static void ask_reverse(struct question *q, unsigned *state)
{
	unsigned n = 1 + pick(state, 12);
	char word[16] = "";

	for (unsigned i = 0; i < n; i++) {
		word[i] = (char)('a' + pick(state, 26));
		q->answer[n - 1 - i] = word[i];
	}
	q->answer[n] = '\0';
	snprintf(q->prompt, TEXT_MAX, "rev %s\n", word);
}

static void ask(struct question *q, unsigned kind, unsigned *state)
{
	static void (*const kinds[])(struct question *, unsigned *) = {
		ask_sum, ask_count, ask_sort, ask_reverse,
	};

	memset(q, 0, sizeof(*q));
	kinds[kind % 4](q, state);
}

/* ---- one client process ---- */

static int submit(struct mimeo *m, struct question *q, unsigned index, uint32_t model)
{
	struct mimeo_request *request = mimeo_request_get(m);
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;
	size_t length = strlen(q->prompt);

	if (!request)
		return MIMEO_E_FULL;
	q->tokens[0] = mimeo_model_get(m, model)->bos;
	for (size_t i = 0; i < length; i++)
		q->tokens[i + 1] = (unsigned char)q->prompt[i];
	generate.model = model;
	generate.tokens = q->tokens;
	generate.n_tokens = (uint32_t)length + 1;
	generate.max_tokens = TEXT_MAX - 1;
	mimeo_request_set_data(request, index);
	return mimeo_request_prep_generate(request, &generate);
}

static void take(struct question *q, const struct mimeo_event *event, struct totals *totals)
{
	char message[256];

	for (uint32_t i = 0; i < event->n_tokens; i++) {
		bool end = event->finish == MIMEO_FINISH_STOP && i + 1 == event->n_tokens;

		if (!end && q->reply_length < TEXT_MAX - 1)
			q->reply[q->reply_length++] = (char)event->tokens[i];
	}
	if (event->kind != MIMEO_EVENT_FINAL)
		return;
	q->ended = true;
	totals->tokens += event->n_generated;
	if (event->status) {
		mimeo_event_message(event, message, sizeof(message));
		fprintf(stderr, "%s: %s: %s\n", q->prompt, mimeo_status_name(event->status), message);
	}
	if (strcmp(q->reply, q->answer) == 0 && event->finish == MIMEO_FINISH_STOP) {
		totals->right++;
		return;
	}
	totals->wrong++;
	fprintf(stderr, "wrong: %s -> \"%s\", expected \"%s\"\n", q->prompt, q->reply, q->answer);
}

static int run_questions(struct mimeo *m, const struct options *o, unsigned process, struct shared *shared)
{
	static struct question questions[QUESTIONS_MAX];
	struct totals *totals = &shared->totals[process];
	unsigned state = o->seed * 7919u + process, left = o->questions;
	int model = mimeo_model_find(m, o->model), rc = 0;

	for (unsigned i = 0; i < o->questions && model >= 0 && !rc; i++) {
		ask(&questions[i], i, &state);
		rc = submit(m, &questions[i], i, (uint32_t)model);
	}
	/* All processes start together, so that their rows meet in the daemon's batches. */
	pthread_barrier_wait(&shared->barrier);
	if (model < 0 || rc) {
		fprintf(stderr, "model %s: %s\n", o->model, mimeo_strerror(model < 0 ? model : rc));
		return 1;
	}
	rc = mimeo_submit(m);
	while (left && rc >= 0) {
		struct mimeo_event event;

		rc = mimeo_event_wait(m, &event, -1);
		if (rc != 1)
			break;
		take(&questions[event.user_data], &event, totals);
		left -= event.kind == MIMEO_EVENT_FINAL;
		mimeo_event_seen(m, &event);
	}
	if (left)
		fprintf(stderr, "%u questions unanswered: %s\n", left, mimeo_strerror(rc));
	return left || totals->wrong;
}

static int client(const struct options *o, unsigned process, struct shared *shared)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	struct mimeo *m;
	int rc;

	config.socket_path = o->socket;
	rc = mimeo_connect(&m, &config);
	if (rc) {
		fprintf(stderr, "connect: %s\n", mimeo_strerror(rc));
		pthread_barrier_wait(&shared->barrier);
		return 1;
	}
	rc = run_questions(m, o, process, shared);
	mimeo_close(m);
	return rc;
}

/* ---- all of them ---- */

static struct shared *shared_new(unsigned processes)
{
	struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_barrierattr_t attr;

	if (shared == MAP_FAILED)
		return NULL;
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&shared->barrier, &attr, processes);
	pthread_barrierattr_destroy(&attr);
	return shared;
}

static int run_all(const struct options *o)
{
	struct shared *shared = shared_new(o->processes);
	struct totals sum = {0};
	int failed = 0;

	if (!shared)
		return 1;
	for (unsigned i = 0; i < o->processes; i++) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(client(o, i, shared));
		if (pid < 0) {
			perror("fork");
			exit(1);
		}
	}
	for (int status; wait(&status) > 0;)
		failed |= !WIFEXITED(status) || WEXITSTATUS(status);
	for (unsigned i = 0; i < o->processes; i++) {
		sum.right += shared->totals[i].right;
		sum.tokens += shared->totals[i].tokens;
	}
	printf("processes %u\nquestions %u\nright %u\ntokens %lu\n", o->processes,
		o->processes * o->questions, sum.right, sum.tokens);
	munmap(shared, sizeof(*shared));
	return failed || sum.right != o->processes * o->questions;
}

int main(int argc, char **argv)
{
	static const struct option names[] = {
		{"socket", required_argument, NULL, 's'},
		{"model", required_argument, NULL, 'm'},
		{"processes", required_argument, NULL, 'p'},
		{"questions", required_argument, NULL, 'q'},
		{"seed", required_argument, NULL, 'r'},
		{0},
	};
	struct options o = {.model = "tinycalc", .processes = 4, .questions = 16, .seed = 1};
	int c;

	while ((c = getopt_long(argc, argv, "", names, NULL)) != -1) {
		if (c == 's')
			o.socket = optarg;
		else if (c == 'm')
			o.model = optarg;
		else if (c == 'p')
			o.processes = (unsigned)strtoul(optarg, NULL, 10);
		else if (c == 'q')
			o.questions = (unsigned)strtoul(optarg, NULL, 10);
		else if (c == 'r')
			o.seed = (unsigned)strtoul(optarg, NULL, 10);
		else
			return 2;
	}
	if (!o.processes || o.processes > PROCESSES_MAX || !o.questions || o.questions > QUESTIONS_MAX) {
		fprintf(stderr, "quickstart: 1 ... %d processes, 1 ... %d questions each\n",
			PROCESSES_MAX, QUESTIONS_MAX);
		return 2;
	}
	return run_all(&o);
}
