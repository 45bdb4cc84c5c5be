/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_MLA_MLA_PROMPT_CUDA_H
#define MIMEO_ATTENTION_MLA_MLA_PROMPT_CUDA_H

/*
 * The interface between the host side of prompts that are not absorbed and their kernels on CUDA.
 */

#include "attention/mla/mla_prompt.h"
#include "attention/variant.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MLA_PROMPT_GRANULE 128u /* keys: the tuned kernel's tile */

struct mla_prompt_cuda_args {
	struct mla_prompt_args a;
	uint32_t *ticket; /* of the tuned kernel, which draws its work; 0 between launches */
	uint32_t n_items; /* of it: blocks of queries, of all pieces and heads */
};

/* Launchers. They need cuda_launch_begin before and cuda_launch_end after. */

/* Rows of the chunk, from the first piece's to the end of the last one's last granule. */
void mla_prompt_gather_launch(
	struct stream *stream, const struct mla_prompt_args *args, uint32_t n_rows);
/* Any sizes to MLA_PROMPT_ANY_DIM elements of a head, any alignment; slow. */
#define MLA_PROMPT_ANY_DIM 1024u
void mla_prompt_any_launch(struct stream *stream, const struct mla_prompt_args *args);
extern const void *const mla_prompt_any_kernel;

/* The tuned kernel: nope 128, rope 64, v 128; for devices of 9.0 alone, in a build with device code
 * for 90a (MIMEO_PAGED_SM90). q is aligned to 16 bytes, q_stride to 8 elements, out to 4 bytes. */
bool mla_prompt_sm90_variant(const struct attention_latent *latent, uint32_t shared_bytes_optin,
	struct attention_variant *ret);
/* Maps: expanded, and ropes; boxes of MLA_PROMPT_GRANULE rows. */
void mla_prompt_sm90_launch(struct stream *stream, const struct attention_variant *variant,
	const struct mla_prompt_cuda_args *args, const struct cuda_tensor_map *expanded,
	const struct cuda_tensor_map *ropes);

#ifdef __cplusplus
}
#endif

#endif
