/* SPDX-License-Identifier: MIT */
#include "sdk/text/chat_loop.h"

static bool loop_fetch(
	struct chat_context *context, struct chat_loop *loop, struct chat_value *ret_item)
{
	struct chat_value item;

	while (!loop->is_exhausted) {
		if (!chat_next(context, &loop->iterator, &item)) {
			loop->is_exhausted = true;
			break;
		}
		chat_charge(context, 1);
		if (loop->accepts && !loop->accepts(loop, item))
			continue;
		*ret_item = item;
		return true;
	}
	return false;
}

bool chat_loop_next(
	struct chat_context *context, struct chat_loop *loop, struct chat_value *ret_item)
{
	struct chat_value item = loop->next;

	loop->next.type = CHAT_MISSING;
	if (item.type == CHAT_MISSING && !loop_fetch(context, loop, &item))
		return false;
	loop->index++;
	loop->previous = loop->current;
	loop->current = item;
	*ret_item = item;
	return true;
}

static bool loop_has_next(struct chat_context *context, struct chat_loop *loop)
{
	return loop->next.type != CHAT_MISSING || loop_fetch(context, loop, &loop->next);
}

/* Without a length of its own, the rest is fetched to count it. */
static int64_t loop_count(struct chat_context *context, struct chat_loop *loop)
{
	struct chat_value rest, item;

	if (loop->n < 0 && !loop->accepts)
		loop->n = chat_length(context, loop->iterator.source);
	if (loop->n >= 0)
		return loop->n;
	rest = chat_list_new(context, CHAT_LIST);
	while (loop_fetch(context, loop, &item))
		chat_list_add(context, rest.list, item);
	loop->n = (int64_t)rest.list->n + loop->index + 1 + (loop->next.type != CHAT_MISSING);
	loop->iterator = chat_iterate(context, rest);
	loop->accepts = NULL;
	loop->is_exhausted = false;
	return loop->n;
}

static struct chat_value loop_cycle(const struct chat_call *call)
{
	if (!call->positional->n)
		chat_fail(call->context, MIMEO_E_INVALID, "cycle() lacks its items");
	return call->positional->items[(size_t)call->self.loop->index % call->positional->n];
}

static struct chat_value loop_changed(const struct chat_call *call)
{
	struct chat_loop *loop = call->self.loop;
	struct chat_value values = chat_list_new(call->context, CHAT_TUPLE);

	for (size_t i = 0; i < call->positional->n; i++)
		chat_list_add(call->context, values.list, call->positional->items[i]);
	if (loop->last_changed.type != CHAT_MISSING &&
		chat_equal(call->context, loop->last_changed, values))
		return chat_bool(false);
	loop->last_changed = values;
	return chat_bool(true);
}

struct chat_value chat_loop_attribute(
	struct chat_context *context, struct chat_value value, const struct chat_string *name)
{
	static const struct chat_builtin methods[] = {
		{"cycle", loop_cycle, NULL, 0},
		{"changed", loop_changed, NULL, 0},
	};
	const struct chat_builtin *method = chat_find_builtin(methods, 2, name);
	struct chat_loop *loop = value.loop;

	if (method) {
		struct chat_value bound = {
			.type = CHAT_METHOD, .method = CHAT_NEW(context, struct chat_method)};

		*bound.method = (struct chat_method){value, method};
		return bound;
	}
	if (chat_string_is(name, "index0"))
		return chat_int(loop->index);
	if (chat_string_is(name, "index"))
		return chat_int(loop->index + 1);
	if (chat_string_is(name, "first"))
		return chat_bool(loop->index == 0);
	if (chat_string_is(name, "last"))
		return chat_bool(!loop_has_next(context, loop));
	if (chat_string_is(name, "length"))
		return chat_int(loop_count(context, loop));
	if (chat_string_is(name, "revindex"))
		return chat_int(loop_count(context, loop) - loop->index);
	if (chat_string_is(name, "revindex0"))
		return chat_int(loop_count(context, loop) - loop->index - 1);
	if (chat_string_is(name, "depth"))
		return chat_int(loop->depth + 1);
	if (chat_string_is(name, "depth0"))
		return chat_int(loop->depth);
	if (chat_string_is(name, "previtem"))
		return loop->index ? loop->previous
				   : chat_undefined_hint(context, "there is no previous item");
	if (chat_string_is(name, "nextitem"))
		return loop_has_next(context, loop)
			       ? loop->next
			       : chat_undefined_hint(context, "there is no next item");
	return (struct chat_value){.type = CHAT_MISSING};
}
