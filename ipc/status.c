/* SPDX-License-Identifier: MIT */
#include "ipc/status.h"

const char *status_name(int status)
{
	switch (status) {
#define NAME(name, value, sentence)                                                                \
	case value:                                                                                \
		return "MIMEO_" #name;
		STATUS_LIST(NAME)
#undef NAME
	default:
		return "MIMEO_E_?";
	}
}

const char *status_sentence(int status)
{
	switch (status) {
#define SENTENCE(name, value, sentence)                                                            \
	case value:                                                                                \
		return sentence;
		STATUS_LIST(SENTENCE)
#undef SENTENCE
	default:
		return "unknown status";
	}
}
