#include <mimeo/mimeo.h>
#include <stdio.h>

int main(void)
{
	const int32_t prompt[] = {1, '1', '2', '+', '3', '4', '='}; /* 1: begin */
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;
	struct mimeo_event event = {0};
	struct mimeo *mimeo;

	if (mimeo_connect(&mimeo, &config))
		return 1;
	generate.tokens = prompt;
	generate.n_tokens = generate.max_tokens = 7;
	if (mimeo_request_prep_generate(mimeo_request_get(mimeo), &generate) || mimeo_submit(mimeo) < 0)
		return 1;
	while (event.kind != MIMEO_EVENT_FINAL && mimeo_event_wait(mimeo, &event, -1) == 1) {
		for (uint32_t i = 0; i < event.n_tokens; i++)
			putchar(event.tokens[i] == 2 ? '\n' : event.tokens[i]); /* 2: end */
		mimeo_event_seen(mimeo, &event);
	}
	mimeo_close(mimeo);
	return event.status != 0;
}
