/* SPDX-License-Identifier: MIT */
#include "daemon/run/run_output.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void run_output_init(struct run_output *ret, const struct run_options *options,
	const struct mimeo_model_info *model)
{
	*ret = (struct run_output){
		.text = model->vocab_size == 256 && !options->ids,
		.ends = {model->eos, options->stop},
		.n_ends = {options->ignore_eos ? 0 : model->n_eos, options->n_stop},
		.held = -1,
	};
}

static bool run_output_may_end(const struct run_output *output, int32_t token)
{
	for (int list = 0; list < 2; list++) {
		for (uint32_t i = 0; i < output->n_ends[list]; i++) {
			if (output->ends[list][i] == token)
				return true;
		}
	}
	return false;
}

static void run_output_print(struct run_output *output, int32_t token)
{
	if (output->text)
		putchar(token);
	else
		printf(output->started ? ",%d" : "%d", token);
	output->started = true;
}

static int run_output_flush(void)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return RUN_OK;
	run_complain("standard output: %s", strerror(errno));
	return RUN_DAEMON;
}

int run_output_event(struct run_output *output, const struct mimeo_event *event)
{
	bool stopped =
		event->kind == MIMEO_EVENT_FINAL && event->finish == MIMEO_FINISH_STOP;

	for (uint32_t i = 0; i < event->n_tokens; i++) {
		if (output->held >= 0)
			run_output_print(output, output->held);
		output->held = event->tokens[i];
	}
	/* The last token waits only if it may be the end token of the answer. */
	if (output->held >= 0 && !stopped &&
		(event->kind == MIMEO_EVENT_FINAL || !run_output_may_end(output, output->held)))
		run_output_print(output, output->held);
	else if (event->kind != MIMEO_EVENT_FINAL)
		return run_output_flush();
	output->held = -1;
	return run_output_flush();
}

int run_output_end(struct run_output *output)
{
	/* Text is the answer's bytes and nothing else, except on a terminal. */
	if (!output->text || (output->started && isatty(STDOUT_FILENO)))
		putchar('\n');
	return run_output_flush();
}
