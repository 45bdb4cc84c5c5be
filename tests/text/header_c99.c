/* SPDX-License-Identifier: MIT */

/* Programs in C99 can use the header. */

#include <mimeo/text.h>

int main(void)
{
	struct mimeo_model_files files = MIMEO_MODEL_FILES_INIT;
	struct mimeo_text_stream_config config = MIMEO_TEXT_STREAM_CONFIG_INIT;
	struct mimeo_text *text = NULL;

	if (mimeo_text_open_files(&text, &files, NULL, 0) != MIMEO_E_INVALID)
		return 1;
	mimeo_text_close(text);
	return config.n_stop != 0;
}
