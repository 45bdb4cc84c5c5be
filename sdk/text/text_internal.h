/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_TEXT_INTERNAL_H
#define MIMEO_SDK_TEXT_TEXT_INTERNAL_H

/* What a struct mimeo_text consists of. */

#include "sdk/text/chat_config.h"
#include "sdk/text/tokenizer.h"

struct mimeo_text {
	struct tokenizer *tokenizer;
	struct chat_set *chat; /* may have no template */
};

#endif
