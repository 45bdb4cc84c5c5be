/* SPDX-License-Identifier: MIT */
#include "daemon/model/model.h"

#include <math.h>

float model_attention_scale(const struct model_config *config)
{
	return 1.0f / sqrtf((float)config->head_dim);
}
