/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_TEXT_H
#define MIMEO_SDK_TEXT_TEXT_H

/* What a struct mimeo_text is made of. */

#include <mimeo/text.h>

#include "sdk/text/text_chat.h"
#include "sdk/text/tokenizer.h"

struct mimeo_text {
	struct tokenizer *tokenizer;
	struct text_chat chat;
};

#endif
