/* SPDX-License-Identifier: MIT */
/*
 * If an engine or a start fails, the current owner frees the models: each model and each draft model once,
 * and a draft ahead of its target, whose ends it shares.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/engine/engine.h"
#include "daemon/startup/startup.h"
#include "tests/device_memory.h"

/* ---- linked in the place of the real ones ---- */

enum { HOLDERS = 8 };

static const struct model *freed[HOLDERS]; /* in order */
static uint32_t n_freed;
static uint32_t fail_calloc; /* the how manieth; 0: none */
static uint32_t n_callocs;
static struct model *loaded[HOLDERS]; /* in order */
static uint32_t n_loaded, fail_load;

void __real_model_free(struct model *model);
void __wrap_model_free(struct model *model);
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
int __real_model_load(struct device *device, const char *directory, const struct model_config *config,
	uint32_t max_seq_len, void (*progress)(void *userdata, uint64_t done, uint64_t total),
	void *userdata, struct model **ret, struct model_error *error);
int __wrap_model_load(struct device *device, const char *directory, const struct model_config *config,
	uint32_t max_seq_len, void (*progress)(void *userdata, uint64_t done, uint64_t total),
	void *userdata, struct model **ret, struct model_error *error);

static bool fakes; /* models are nothing but their addresses */

void __wrap_model_free(struct model *model)
{
	if (model) {
		assert_in_range(n_freed, 0, HOLDERS - 1);
		freed[n_freed++] = model;
	}
	if (!fakes)
		__real_model_free(model);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return ++n_callocs == fail_calloc ? NULL : __real_calloc(n, size);
}

/* Of drafts, too. */
int __wrap_model_load(struct device *device, const char *directory, const struct model_config *config,
	uint32_t max_seq_len, void (*progress)(void *userdata, uint64_t done, uint64_t total),
	void *userdata, struct model **ret, struct model_error *error)
{
	int rc;

	assert_in_range(n_loaded, 0, HOLDERS - 1);
	snprintf(error->text, sizeof(error->text), "it is not to be loaded");
	if (n_loaded + 1 == fail_load)
		return -EIO;
	rc = __real_model_load(
		device, directory, config, max_seq_len, progress, userdata, ret, error);
	if (!rc)
		loaded[n_loaded++] = *ret;
	return rc;
}

/* ---- what was freed ---- */

static uint32_t place_of(const struct model *model)
{
	uint32_t at = HOLDERS;

	for (uint32_t i = 0; i < n_freed; i++) {
		if (freed[i] != model)
			continue;
		assert_int_equal(at, HOLDERS);
		at = i;
	}
	assert_true(at < HOLDERS);
	return at;
}

static void assert_freed(const struct model *target, const struct model *draft)
{
	assert_true(place_of(draft) < place_of(target));
}

/* ---- the engine ---- */

static int answer_nothing(struct device *device, struct device_info *ret)
{
	return -EIO;
}

/* Two models whose first runner cannot be made. */
static int make_engine(struct device *device, struct model *const models[4], uint32_t failing)
{
	struct engine_options options = {.device = device, .n_models = 2, .max_requests = 4,
		.max_batch_tokens = 64, .page_tokens = 16, .max_sequences = 4};
	struct model_error error = {.text = ""};
	struct engine *engine = NULL;
	int rc;

	for (uint32_t i = 0; i < 2; i++)
		options.models[i] = (struct engine_model_options){.name = "m",
			.model = models[2 * i], .draft = models[2 * i + 1], .n_drafts = 4,
			.max_seq_len = 64, .kv_pages = 8};
	n_freed = n_callocs = 0;
	fakes = true;
	fail_calloc = failing;
	rc = engine_new(&options, &engine, &error);
	fail_calloc = 0;
	fakes = false;
	assert_null(engine);
	return rc;
}

static void test_engine_that_cannot_be_made_frees_drafts_ahead_of_their_models(void **state)
{
	struct device *device = test_device_open(0);
	const struct device_ops *ops = device->ops;
	struct device_ops mute = *ops;
	static char places[4];
	struct model *models[4];
	uint32_t n = 0;
	int rc;

	for (uint32_t i = 0; i < 4; i++)
		models[i] = (struct model *)&places[i];
	mute.info = answer_nothing;
	device->ops = &mute;
	do {
		rc = make_engine(device, models, ++n);
		assert_true(rc != 0);
		assert_int_equal(n_freed, 4);
		assert_freed(models[0], models[1]);
		assert_freed(models[2], models[3]);
	} while (n_callocs >= n);
	/* all memory was there, and the device did not answer */
	assert_int_equal(rc, -EIO);
	assert_true(n > 6);
	device->ops = ops;
	device->ops->free(device);
}

/* ---- the start ---- */

static void make_config(struct config *ret, const char *folder)
{
	const char *source = getenv("MIMEO_SOURCE") ? getenv("MIMEO_SOURCE") : ".";
	struct config_settings file = {0};
	struct config_error error;
	char text[4096];
	int n = snprintf(text, sizeof(text),
		"[mimeod]\ndevice = %s\nsocket = %s/m.sock\nmax_requests = 4\nmax_batch_tokens = 64\n"
		"kv_pages = 8\n[model a]\ndir = %s/examples/models/tinycalc\n"
		"draft = %s/examples/models/tinycalc-eagle\n[model b]\n"
		"dir = %s/examples/models/tinycalc\ndraft = %s/examples/models/tinycalc-eagle\n",
		test_device(), folder, source, source, source, source);

	assert_in_range(n, 0, sizeof(text) - 1);
	if (config_parse_memory(&file, "mimeod.conf", text, (size_t)n, &error) ||
		config_resolve(&file, ret, &error))
		fail_msg("%s", error.text);
	config_settings_deinit(&file);
}

/* The second model, then its draft. */
static void test_start_that_fails_frees_drafts_ahead_of_their_models(void **state)
{
	char folder[64] = "/tmp/mimeo-owned-XXXXXX", path[128];
	struct startup_error error = {.text = ""};
	struct startup *startup = NULL;
	static struct config config;

	assert_non_null(mkdtemp(folder));
	for (fail_load = 3; fail_load <= 4; fail_load++) {
		config = (struct config){0};
		make_config(&config, folder);
		n_freed = n_loaded = 0;
		assert_int_equal(startup_new(&config, &startup, &error), -EIO);
		assert_non_null(strstr(error.text, "it is not to be loaded"));
		assert_int_equal(n_loaded, fail_load - 1);
		assert_int_equal(n_freed, n_loaded);
		assert_freed(loaded[0], loaded[1]);
		config_deinit(&config);
	}
	fail_load = 0;
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/m%s.sock.lock", folder, i ? "-admin" : "");
		unlink(path);
	}
	assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_engine_that_cannot_be_made_frees_drafts_ahead_of_their_models),
		cmocka_unit_test(test_start_that_fails_frees_drafts_ahead_of_their_models),
	};
	static const struct test_cpu_only only[] = {
		{NULL, NULL},
	};

	return TEST_RUN_GROUP("engine owned", tests, only, NULL, NULL);
}
