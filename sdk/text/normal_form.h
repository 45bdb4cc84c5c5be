/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_NORMAL_FORM_H
#define MIMEO_SDK_TEXT_NORMAL_FORM_H

#include "sdk/text/edit.h"

/* Unicode's normalization forms (Unicode standard annex 15): NFC, NFD, NFKC, NFKD. */
void normal_form(struct edit *edit, bool composed, bool compatible);

#endif
