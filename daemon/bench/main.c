/* SPDX-License-Identifier: MIT */
#include "daemon/bench/options.h"

static const struct bench benches[] = {
	{"ring", "a null request there and back, spinning and asleep", bench_ring, false, false, NULL},
	{"attach", "connect, handshake and first tokens of one more process", bench_attach, false,
		false, NULL},
	{"share", "N processes with a sequence each, against one loop in process", bench_share,
		false, false, NULL},
	{"speculation", "a load with a draft and without; what a step of each costs",
		bench_speculation, false, false, NULL},
	{"decode", "decode steps of a model in process, against bytes by bandwidth", bench_decode,
		true, false, NULL},
};

int main(int argc, char **argv)
{
	static const struct program program = {
		.name = "mimeo-bench",
		.purpose = "Measure what Mimeo costs, beside the floor that this machine sets.",
		.benches = benches,
		.n_benches = sizeof(benches) / sizeof(benches[0]),
	};

	return program_main(&program, argc, argv);
}
