/* SPDX-License-Identifier: MIT */

/* The public header stands alone in C++17, and its functions keep their C names. */
#include <mimeo/mimeo.h>

static const struct mimeo_config config = MIMEO_CONFIG_INIT;
static const struct mimeo_generate generate = MIMEO_GENERATE_INIT;
static const struct mimeo_step step = MIMEO_STEP_INIT;

int main()
{
	return !(config.size == sizeof(config) && config.spin_us == MIMEO_SPIN_DEFAULT &&
		 generate.size == sizeof(generate) && step.size == sizeof(step) &&
		 mimeo_version()[0] != '\0');
}
