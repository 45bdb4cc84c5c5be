/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_ALLOCATIONS_H
#define MIMEO_TESTS_ALLOCATIONS_H

/* Counts the calling thread's allocations: by interposition, under a sanitizer by its hook. For one source of
 * a program. */

#include <stddef.h>

static _Thread_local unsigned long n_allocations;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#ifdef SANITIZED
int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void *, size_t),
	void (*free_hook)(const volatile void *));

static void allocations_on_malloc(const volatile void *at, size_t size)
{
	n_allocations++;
}

static void allocations_on_free(const volatile void *at)
{
}

static inline void allocations_watch(void)
{
	__sanitizer_install_malloc_and_free_hooks(allocations_on_malloc, allocations_on_free);
}
#else
#define SANITIZED 0
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *at, size_t size);

void *malloc(size_t size)
{
	n_allocations++;
	return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	n_allocations++;
	return __libc_calloc(n, size);
}

void *realloc(void *at, size_t size)
{
	n_allocations++;
	return __libc_realloc(at, size);
}

static inline void allocations_watch(void)
{
}
#endif

#endif
