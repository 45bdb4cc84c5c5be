/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_ROW_H
#define MIMEO_DAEMON_ENGINE_ROW_H

#include "daemon/engine/models/runner.h"
#include "daemon/engine/requests/sequence.h"

/* Each writes its part of the sequence's row, or of the record's lists that the row refers to. Whether the lists have
 * room is the caller's to check. */

void row_place_embeddings(const struct runner *runner, const struct sequence *s, struct step_row *row);
void row_place_words(struct sequence *s, const struct inputs_slot *slot, struct step_row *row);
/* The slot's initialisation, or what changed in its block tables. */
void row_show_pages(struct inputs_slot *slot, struct sequence *s, struct step_row *row);
/* Entries of block tables that this takes. */
uint32_t row_n_unshown(const struct sequence *s);
/* Where the tokens end that are computed again under the model's mask, not the request's; 0: there are none. */
uint32_t row_history_end(const struct sequence *s);

#endif
