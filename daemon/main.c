/* SPDX-License-Identifier: MIT */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "build-config.h"
#include "daemon/startup/interrupt.h"
#include "daemon/output/log.h"
#include "daemon/config/options.h"
#include "daemon/startup/startup.h"
#include "daemon/startup/startup_check.h"

static void main_announce(const struct config *config)
{
	if (config->n_files > 0)
		log_info("mimeod %s, configuration: %u file%s, of %s and %s.d/*.conf", MIMEO_VERSION, config->n_files,
			config->n_files == 1 ? "" : "s", config->file, config->file);
	else
		log_info("mimeod %s, configuration: no file", MIMEO_VERSION);
	config_describe(config);
}

static int main_serve(const struct config *config, int argc, char **argv, const char *default_config)
{
	struct startup_error error;
	struct startup *startup;
	bool abandoned;

	enum log_format format = LOG_FORMAT_AUTO;

	(void)log_format_parse(config->log_format, &format); /* one of these: config_value.c */
	log_set_format(format);
	log_set_level(config->log_level);
	if (interrupt_arm() < 0) {
		log_error("cannot start a thread");
		return MIMEOD_EXIT_ERROR;
	}
	main_announce(config);
	if (startup_new(config, &startup, &error) < 0) {
		log_error("%s", error.text);
		return MIMEOD_EXIT_ERROR;
	}
	startup_allow_reload(startup, argc, argv, default_config);
	int status = startup_serve(startup, &abandoned);
	/* The engine's or the loader's thread still uses what startup_free would release. */
	if (abandoned)
		_exit(status);
	startup_free(startup);
	return status;
}

/* Signals that must not end the daemon: a log without a reader, a file limit, what others send by mistake. */
static void main_ignore_signals(void)
{
	static const int ignored[] = {SIGPIPE, SIGXFSZ, SIGHUP, SIGUSR1, SIGUSR2};

	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		signal(ignored[i], SIG_IGN);
}

/* What a start would refuse, as far as it shows without the device and the weights. */
static int main_check(const struct config *config)
{
	uint32_t n = startup_check(config, stderr);

	if (fflush(stdout) == 0 && !ferror(stdout))
		return n > 0 ? MIMEOD_EXIT_ERROR : MIMEOD_EXIT_DONE;
	perror("mimeod: standard output");
	return MIMEOD_EXIT_ERROR;
}

static void main_print_errors(const struct config_error *error)
{
	for (const char *line = error->text; *line; line += strcspn(line, "\n"), line += *line == '\n')
		fprintf(stderr, "mimeod: %.*s\n", (int)strcspn(line, "\n"), line);
	if (error->n_dropped > 0)
		fprintf(stderr, "mimeod: and %u more errors\n", error->n_dropped);
}

int main(int argc, char **argv)
{
	char user_config[CONFIG_FOLDER_MAX];
	struct config_error error;
	struct config config;

	main_ignore_signals();
	log_open(STDERR_FILENO);
	const char *default_config = options_find_config(OPTIONS_DEFAULT_CONFIG, geteuid() == 0, user_config);
	int rc = options_parse(argc, argv, default_config, stdout, &config, &error);
	if (rc == OPTIONS_DONE)
		return MIMEOD_EXIT_DONE;
	if (rc < 0) {
		main_print_errors(&error);
		return MIMEOD_EXIT_USAGE;
	}
	int status = rc == OPTIONS_CHECK ? main_check(&config) : main_serve(&config, argc, argv, default_config);
	config_deinit(&config);
	return status;
}
