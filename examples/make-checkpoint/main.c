/* SPDX-License-Identifier: MIT */
/*
 * Writes a Hugging Face model directory of any size with seeded random weights: config.json and
 * bf16 safetensors, in shards with an index where they exceed --shard-bytes. For measuring and for
 * tests: what such a model says means nothing, but it takes the time and memory of a real one.
 *
 * config.json comes last: a directory that has it is whole.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "examples/make-checkpoint/files.h"
#include "examples/make-checkpoint/model.h"
#include "examples/make-checkpoint/weights.h"

struct order {
	struct model model;
	struct weights_options weights;
	bool config_only, family_given;
};

enum option_name {
	OPT_SHAPE = N_NUMBERS,
	OPT_FAMILY,
	OPT_SEED,
	OPT_SHARD_BYTES,
	OPT_THREADS,
	OPT_CONFIG_ONLY,
	OPT_HELP,
	OPT_VERSION,
	N_OPTIONS
};

static const struct option names[N_OPTIONS + 1] = {
	[HIDDEN] = {"hidden", required_argument, NULL, HIDDEN},
	[LAYERS] = {"layers", required_argument, NULL, LAYERS},
	[HEADS] = {"heads", required_argument, NULL, HEADS},
	[KV_HEADS] = {"kv-heads", required_argument, NULL, KV_HEADS},
	[HEAD_DIM] = {"head-dim", required_argument, NULL, HEAD_DIM},
	[INNER] = {"inner", required_argument, NULL, INNER},
	[VOCAB] = {"vocab", required_argument, NULL, VOCAB},
	[MAX_LENGTH] = {"max-length", required_argument, NULL, MAX_LENGTH},
	[TIED] = {"tied", required_argument, NULL, TIED},
	[WINDOW] = {"window", required_argument, NULL, WINDOW},
	[DRAFT_VOCAB] = {"draft-vocab", required_argument, NULL, DRAFT_VOCAB},
	[RANK] = {"rank", required_argument, NULL, RANK},
	[Q_RANK] = {"q-rank", required_argument, NULL, Q_RANK},
	[NOPE] = {"nope", required_argument, NULL, NOPE},
	[ROPE] = {"rope", required_argument, NULL, ROPE},
	[VALUE] = {"value", required_argument, NULL, VALUE},
	[EXPERTS] = {"experts", required_argument, NULL, EXPERTS},
	[ACTIVE] = {"active", required_argument, NULL, ACTIVE},
	[SHARED] = {"shared", required_argument, NULL, SHARED},
	[EXPERT_INNER] = {"expert-inner", required_argument, NULL, EXPERT_INNER},
	[GROUPS] = {"groups", required_argument, NULL, GROUPS},
	[GROUPS_ACTIVE] = {"groups-active", required_argument, NULL, GROUPS_ACTIVE},
	[DENSE] = {"dense", required_argument, NULL, DENSE},
	[OPT_SHAPE] = {"shape", required_argument, NULL, OPT_SHAPE},
	[OPT_FAMILY] = {"family", required_argument, NULL, OPT_FAMILY},
	[OPT_SEED] = {"seed", required_argument, NULL, OPT_SEED},
	[OPT_SHARD_BYTES] = {"shard-bytes", required_argument, NULL, OPT_SHARD_BYTES},
	[OPT_THREADS] = {"threads", required_argument, NULL, OPT_THREADS},
	[OPT_CONFIG_ONLY] = {"config-only", no_argument, NULL, OPT_CONFIG_ONLY},
	[OPT_HELP] = {"help", no_argument, NULL, OPT_HELP},
	[OPT_VERSION] = {"version", no_argument, NULL, OPT_VERSION},
};

static void main_print_help(void)
{
	printf("Usage: make-checkpoint [OPTION]... DIRECTORY\n\n"
	       "Write a Hugging Face model directory with seeded random bf16 weights.\n\n"
	       "  --shape NAME       tiny (default), 1B (Llama-3.2-1B), 3B (Llama-3.2-3B),\n"
	       "                     8B (Llama-3.1-8B), V2-Lite (DeepSeek-V2-Lite),\n"
	       "                     Qwen2.5-0.5B, Qwen2.5-1.5B, Mistral-7B (v0.3)\n"
	       "  --family NAME      default: the shape's; llama, mistral, qwen2, qwen3,\n"
	       "                     phi3, qwen3_moe, gemma2, gemma3, deepseek_v2,\n"
	       "                     deepseek_v3 (with an MTP head: mimeod --draft\n"
	       "                     mtp); eagle or\n"
	       "                     eagle3: a draft of one layer for the model that the same\n"
	       "                     sizes make, which for eagle3 has 3 layers or more (tiny:\n"
	       "                     --layers 3)\n"
	       "  --hidden N, --layers N, --heads N, --kv-heads N, --head-dim N, --inner N,\n"
	       "  --vocab N, --max-length N\n"
	       "                     sizes in place of the shape's\n"
	       "  --tied 0|1         the head is the embedding\n"
	       "  --rank N, --q-rank N, --nope N, --rope N, --value N\n"
	       "                     deepseek: latent attention (--q-rank 0: queries have none)\n"
	       "  --experts N, --active N, --expert-inner N\n"
	       "                     deepseek, qwen3_moe: experts of a layer, those that a token\n"
	       "                     sees, the size of one\n"
	       "  --dense N          deepseek, qwen3_moe: layers without experts, the first ones\n"
	       "  --shared N, --groups N, --groups-active N\n"
	       "                     deepseek: experts that every token sees, groups of experts\n"
	       "  --window N         mistral, phi3, gemma2, gemma3: sliding window in tokens (default: 0, none)\n"
	       "  --draft-vocab N    eagle3: ids that it knows (default: the model's vocabulary)\n"
	       "  --seed N           of the weights (default: 1)\n"
	       "  --shard-bytes N    the most tensor bytes of a file (default: 4000000000)\n"
	       "  --threads N        (default: as many as CPUs)\n"
	       "  --config-only      write config.json and no weights\n"
	       "  --help             print this and exit\n"
	       "  --version          print the version and exit\n\n"
	       "The directory is made if it is missing; nothing in it is overwritten. Exit status: "
	       "0 done;\n1 a file could not be written; 2 the command line makes no sense.\n");
}

static bool main_parse(const char *text, uint64_t most, uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(text, &end, 10);
	return *text >= '0' && *text <= '9' && !*end && !errno && *ret <= most;
}

/* What a number may be; a model that Mimeo would refuse is not made. */
static int main_take_number(enum number number, const char *text, uint32_t *ret)
{
	static const uint32_t most[N_NUMBERS] = {
		1 << 20, LAYERS_MAX, 4096, 4096, 1024, 1 << 20, 1 << 24, 1 << 28, 1, 1 << 28,
		1 << 24, 1 << 14, 1 << 14, 1024, 1024, 1024, 1024, 1024, 1024, 1 << 18, 1024,
		1024, LAYERS_MAX};
	bool may_be_none = number == TIED || number == WINDOW || number == Q_RANK ||
			   number == SHARED || number == DENSE;
	uint64_t value;

	if (!main_parse(text, most[number], &value) || (value == 0 && !may_be_none))
		return fail("--%s %s: not a number from %d to %u", names[number].name, text,
			!may_be_none, most[number]);
	*ret = (uint32_t)value;
	return 0;
}

static int main_take_other(struct order *order, int option, const char *text)
{
	uint64_t value;

	if (option == OPT_FAMILY) {
		order->family_given = true;
		return model_take_family(&order->model, text);
	}
	if (option == OPT_CONFIG_ONLY) {
		order->config_only = true;
		return 0;
	}
	if (!main_parse(text, option == OPT_THREADS ? THREADS_MAX : UINT64_MAX, &value) ||
		(value == 0 && option != OPT_SEED))
		return fail("--%s %s: out of range or not a number", names[option].name, text);
	if (option == OPT_SEED)
		order->weights.seed = value;
	else if (option == OPT_SHARD_BYTES)
		order->weights.shard_bytes = value;
	else
		order->weights.n_threads = (uint32_t)value;
	return 0;
}

static int main_take_option(struct order *order, int option, uint32_t given[N_NUMBERS],
	bool is_given[N_NUMBERS])
{
	if (option == OPT_SHAPE)
		return model_take_shape(&order->model, optarg);
	if (option >= N_NUMBERS)
		return main_take_other(order, option, optarg);
	is_given[option] = true;
	return main_take_number((enum number)option, optarg, &given[option]);
}

/* The numbers that were given replace the shape's. */
static int main_take_given(struct model *model, const uint32_t given[N_NUMBERS],
	const bool is_given[N_NUMBERS])
{
	const bool deepseek = model_is_deepseek(model);

	for (int i = 0; i < N_NUMBERS; i++) {
		if (!is_given[i])
			continue;
		model->shape.n[i] = given[i];
		if (!model_may_have(model, (enum number)i))
			return fail("--%s is for the families %s", names[i].name,
				model_families_with((enum number)i));
		if ((i == KV_HEADS || i == HEAD_DIM) && deepseek)
			return fail("--%s is not for the families deepseek_v2 and deepseek_v3: "
				    "--rank, --nope, --rope and --value size their heads",
				names[i].name);
	}
	return 0;
}

/* getopt_long takes the beginning of a name, too, which another option could make ambiguous. */
static bool main_is_whole(int option, char **argv)
{
	const char *word = argv[optind - 1];

	if (optarg == word)
		word = argv[optind - 2];
	return strcspn(word + 2, "=") == strlen(names[option].name);
}

/* 0, -1 with a sentence, or 1: --help or --version was printed. */
static int main_read_options(struct order *order, int argc, char **argv)
{
	uint32_t given[N_NUMBERS];
	bool is_given[N_NUMBERS] = {false};
	int option;

	model_take_shape(&order->model, "tiny");
	while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
		if (option != '?' && !main_is_whole(option, argv))
			return fail("options are not abbreviated: did you mean --%s?", names[option].name);
		if (option == OPT_HELP)
			main_print_help();
		if (option == OPT_VERSION)
			printf("make-checkpoint %s\n", MIMEO_VERSION);
		if (option == OPT_HELP || option == OPT_VERSION)
			return 1;
		if (option == '?' || main_take_option(order, option, given, is_given) < 0)
			return -1;
	}
	if (!order->family_given)
		order->model.family = order->model.shape.family;
	if (main_take_given(&order->model, given, is_given) < 0)
		return -1;
	if (optind + 1 != argc)
		return fail(optind == argc ? "no directory is named; see --help"
					   : "one directory at a time; see --help");
	return model_check(&order->model);
}

/* ---- a checkpoint ---- */

static int main_make(const struct order *order)
{
	const char *directory = order->weights.directory;
	const struct model *model = &order->model;
	uint32_t n_files = 0;
	double start = weights_now();

	if (strlen(directory) > 4096)
		return fail("%.64s...: %s", directory, strerror(ENAMETOOLONG));
	if (mkdir(directory, 0755) < 0 && errno != EEXIST)
		return fail("%s: %s", directory, strerror(errno));
	if (!order->config_only && weights_write(model, &order->weights, &n_files) < 0)
		return -1;
	if (file_write_text(directory, "config.json", model_print_config, model) < 0)
		return -1;
	double seconds = weights_now() - start;
	if (model->family == EAGLE3 && model->target_layers < EAGLE3_LAYERS_MIN)
		fprintf(stderr, "make-checkpoint: note: the model of these sizes has %u layer%s, and one "
				"that this draft fits needs %u or more: make that with --layers %u\n",
			model->target_layers, model->target_layers > 1 ? "s" : "",
			EAGLE3_LAYERS_MIN, EAGLE3_LAYERS_MIN);
	printf("%s: %s, ", directory, model_architecture(model));
	if (order->config_only)
		printf("config.json alone\n");
	else
		printf("%" PRIu64 " bytes in %u tensors and %u file%s, %.2f s (%.2f GB/s)\n",
			model->bytes, model->n_tensors, n_files, n_files > 1 ? "s" : "", seconds,
			(double)model->bytes * 1e-9 / seconds);
	return 0;
}

int main(int argc, char **argv)
{
	long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
	struct order order = {.weights = {.seed = 1, .shard_bytes = 4000000000}};
	int rc = main_read_options(&order, argc, argv);

	if (rc != 0)
		return rc < 0 ? 2 : 0;
	if (order.weights.n_threads == 0)
		order.weights.n_threads = n_cpus < 1 ? 1 : n_cpus > 64 ? 64 : (uint32_t)n_cpus;
	order.weights.directory = argv[optind];
	rc = model_list(&order.model) < 0 ? -1 : main_make(&order);
	model_deinit(&order.model);
	return rc < 0 ? 1 : 0;
}
