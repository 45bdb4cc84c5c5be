/* SPDX-License-Identifier: MIT */
/* mimeoctl doctor, with a tree of files in place of /proc and /sys, and a driver's library that lies. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "daemon/ctl/doctor.h"
#include "tests/ipc/test.h"

static const char *mimeoctl; /* the program's path */
static char root[64];
static struct doctor doctor;

static void write_below(const char *path, const char *text)
{
	char full[256];

	snprintf(full, sizeof(full), "%s%s", root, path);
	for (char *at = strchr(full + strlen(root) + 1, '/'); at; at = strchr(at + 1, '/')) {
		*at = '\0';
		mkdir(full, 0700);
		*at = '/';
	}
	FILE *file = fopen(full, "w");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	fclose(file);
}

static int setup(void **state)
{
	strcpy(root, "/tmp/mimeo-doctor-XXXXXX");
	assert_non_null(mkdtemp(root));
	memset(&doctor, 0, sizeof(doctor));
	doctor.root = root;
	unsetenv("FAKE_NVML");
	return 0;
}

static int teardown(void **state)
{
	char line[96];

	snprintf(line, sizeof(line), "rm -r '%s'", root);
	return system(line);
}

static const struct finding *finding_of(const char *check)
{
	for (size_t i = 0; i < doctor.n; i++) {
		if (strcmp(doctor.findings[i].check, check) == 0)
			return &doctor.findings[i];
	}
	fail_msg("nothing about %s", check);
	return NULL;
}

static void assert_finding(const char *check, enum finding_state state, const char *found, const char *todo)
{
	const struct finding *finding = finding_of(check);

	if (finding->state != state || !strstr(finding->found, found) || !strstr(finding->todo, todo))
		fail_msg("%s: state %d: %s; to do: %s", check, finding->state, finding->found, finding->todo);
	assert_true(state != FINDING_WARN || finding->todo[0]);
}

/* ---- the host ---- */

static void test_refused_io_uring_is_laid_to_the_sysctl_or_the_filter(void **state)
{
	doctor_judge_uring(&doctor, 0);
	assert_int_equal(findings_status(&doctor), 0);
	doctor.n = 0;
	write_below("/proc/self/status", "Name:\tmimeoctl\nSeccomp:\t2\n");
	doctor_judge_uring(&doctor, -EPERM);
	assert_finding("io_uring", FINDING_WARN, "a seccomp filter is in force", "SystemCallFilter=");
	assert_int_equal(findings_status(&doctor), 1);
	doctor.n = 0;
	write_below("/proc/sys/kernel/io_uring_disabled", "2\n");
	doctor_judge_uring(&doctor, -EPERM);
	assert_finding("io_uring", FINDING_WARN, "kernel.io_uring_disabled is 2", "sysctl kernel.io_uring_disabled=0");
}

static void test_limits_are_those_of_the_daemon(void **state)
{
	write_below("/proc/self/limits", "Max open files            64                   64                   files\n");
	write_below("/proc/77/limits", "Max open files            1024                 4096                 files\n"
		"Max locked memory         unlimited            unlimited            bytes\n");
	doctor.daemon = 77;
	doctor_look_host(&doctor);
	assert_finding("descriptors", FINDING_WARN, "1024 of the daemon", "LimitNOFILE=");
	assert_finding("memlock", FINDING_OK, "unlimited of the daemon", "");
}

static void test_slow_governor_is_counted(void **state)
{
	write_below("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
	doctor_look_host(&doctor);
	assert_finding("cpu clocks", FINDING_OK, "performance on 1", "");
	doctor.n = 0;
	write_below("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n");
	doctor_look_host(&doctor);
	assert_finding("cpu clocks", FINDING_WARN, "powersave on 1 of 2", "cpupower");
}

static void test_huge_pages_matter_without_a_gpu(void **state)
{
	write_below("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
	doctor_look_host(&doctor);
	assert_finding("huge pages", FINDING_NOTE, "madvise", "echo always");
	doctor.n = 0;
	doctor.gpu = true;
	doctor_look_host(&doctor);
	assert_finding("huge pages", FINDING_OK, "madvise", "");
}

/* ---- the GPU ---- */

static void test_each_fault_of_a_gpu_has_its_remedy(void **state)
{
	static const struct {
		const char *fault, *check, *found, *todo;
	} table[] = {
		{"old", "driver", "up to CUDA 11.8", "CUDA 12"},
		{"mismatch", "driver", "nvmlInit fails with 18", "same version"},
		{"lost", "gpu", "0: it does not answer", "Xid"},
		{"exclusive", "compute mode", "exclusive", "nvidia-smi -i 0 -c DEFAULT"},
		{"transient", "persistence", "off", "nvidia-smi -i 0 -pm 1"},
		{"hot", "gpu clocks", "temperature", "cool"},
		{"power", "gpu clocks", "power limit", "POWER"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		doctor.n = 0;
		setenv("FAKE_NVML", table[i].fault, 1);
		doctor_look_gpu(&doctor);
		assert_finding(table[i].check, FINDING_WARN, table[i].found, table[i].todo);
	}
}

static void test_good_gpu_is_named_and_nothing_is_wrong(void **state)
{
	doctor_look_gpu(&doctor);
	assert_true(doctor.gpu);
	assert_finding("driver", FINDING_OK, "550.54.15, up to CUDA 12.4", "");
	assert_finding("gpu", FINDING_OK,
		"0: NVIDIA H100 80GB HBM3, compute capability 9.0, 80.0 GiB, 79.0 GiB free", "");
	assert_finding("mps", FINDING_OK, "not running", "");
	assert_int_equal(findings_status(&doctor), 0);
}

static void test_mps_and_a_foreign_pid_namespace_are_found(void **state)
{
	char from[128];

	write_below("/proc/500/comm", "nvidia-cuda-mps\n");
	write_below("/proc/self/ns/file", "");
	snprintf(from, sizeof(from), "%s/proc/self/ns/pid", root);
	assert_int_equal(symlink("pid:[4026532222]", from), 0);
	doctor_look_gpu(&doctor);
	assert_finding("mps", FINDING_NOTE, "running", "mimeo_buffer(3)");
	assert_finding("pid namespace", FINDING_NOTE, "a container's own", "--pid=host");
	doctor.n = 0;
	doctor.answers = true;
	doctor_look_gpu(&doctor);
	assert_finding("pid namespace", FINDING_WARN, "another one", "--pid=host");
	doctor.n = 0;
	doctor.daemon = 77;
	write_below("/proc/77/ns/file", "");
	snprintf(from, sizeof(from), "%s/proc/77/ns/pid", root);
	assert_int_equal(symlink("pid:[4026532222]", from), 0);
	doctor_look_gpu(&doctor);
	assert_finding("pid namespace", FINDING_OK, "the daemon's, too", "");
}

/* ---- the program ---- */

static void test_doctor_without_a_daemon_prints_text_of_80_columns_and_json(void **state)
{
	char line[512], said[512];

	setenv("FAKE_NVML", "exclusive", 1);
	snprintf(line, sizeof(line), "'%s' --socket %s/m.sock doctor", mimeoctl, root);
	FILE *output = popen(line, "r");
	assert_non_null(output);
	while (fgets(said, sizeof(said), output))
		assert_true(strlen(said) <= 81);
	assert_int_equal(WEXITSTATUS(pclose(output)), 1);
	snprintf(line, sizeof(line), "'%s' --json --socket %s/m.sock doctor", mimeoctl, root);
	output = popen(line, "r");
	assert_non_null(output);
	json_t *rows = json_loadf(output, 0, NULL);
	assert_int_equal(WEXITSTATUS(pclose(output)), 1);
	assert_true(json_array_size(rows) > 5);
	assert_string_equal(json_string_value(json_object_get(json_array_get(rows, 0), "check")), "daemon");
	assert_string_equal(json_string_value(json_object_get(json_array_get(rows, 0), "state")), "note");
	json_decref(rows);
}

static void test_doctor_that_cannot_print_exits_2(void **state)
{
	char line[256];

	snprintf(line, sizeof(line), "'%s' --socket %s/m.sock doctor >/dev/full 2>&1", mimeoctl, root);
	FILE *output = popen(line, "r");
	assert_non_null(output);
	assert_int_equal(WEXITSTATUS(pclose(output)), 2);
}

#define DOCTOR_TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		DOCTOR_TEST(test_refused_io_uring_is_laid_to_the_sysctl_or_the_filter),
		DOCTOR_TEST(test_limits_are_those_of_the_daemon),
		DOCTOR_TEST(test_slow_governor_is_counted),
		DOCTOR_TEST(test_huge_pages_matter_without_a_gpu),
		DOCTOR_TEST(test_each_fault_of_a_gpu_has_its_remedy),
		DOCTOR_TEST(test_good_gpu_is_named_and_nothing_is_wrong),
		DOCTOR_TEST(test_mps_and_a_foreign_pid_namespace_are_found),
		DOCTOR_TEST(test_doctor_without_a_daemon_prints_text_of_80_columns_and_json),
		DOCTOR_TEST(test_doctor_that_cannot_print_exits_2),
	};

	if (argc != 2)
		return 2;
	mimeoctl = argv[1];
	return cmocka_run_group_tests_name("doctor", tests, NULL, NULL);
}
