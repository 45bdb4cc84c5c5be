/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_ADMIN_WIRE_H
#define MIMEO_DAEMON_SERVE_ADMIN_WIRE_H

/*
 * The protocol of mimeod and mimeoctl on the operators' socket, and on the monitors' one, which refuses all that
 * changes anything: length-prefixed msgpack, as on the client
 * socket. A request is one map,
 *
 *	{"op": "status"|"sessions"|"models"|"graphs"|"metrics"|"requests"|"pages"|"limits"|"drain"|"reload"}
 *	{"op": "kill", "session": number}
 *	{"op": "cancel", "request": number}
 *	{"op": "drop_pages", "model": name}
 *	{"op": "set", "setting": "log_level=debug"}
 *	{"op": "trace", "setting": "start"|"stop"}
 *	{"op": "trace", "setting": "read", "request": number of the first event}
 *	{"op": "load", "model": name, "path": directory or file, "settings": "key=value\\n..."}
 *	{"op": "unload", "model": name}
 *	{"op": "capture"|"drop", "model": name, "graph": name|"all"|"idle"}
 *
 * (without "model": all models; a graph's name is the one in "graphs"; "idle" with drop only, and for all
 * models). "capture", "drop" and "reload" have no rows; "graphs" shows the result of the first two. A reply is one
 * message or several, each a map of exactly
 *
 *	{"status": integer, "text": string, "more": boolean, "rows": [{key: value, ...}, ...]}
 *
 * If "more" is true, the next message continues with further rows, and with the rest of a text that is
 * longer than a message. status is 0 or one of <mimeo/types.h>, with the reason in text. Keys of rows are
 * strings in a fixed order; values are strings, unsigned integers or floats. A connection carries any number
 * of requests, one at a time: a request that arrives before the last reply has been sent closes it.
 *
 * "trace" with "stop" has a row {"first", "end", "lost"}, numbers of events; "read" has events as the text, parts of a JSON
 * array, and a row {"next", "end"}.
 *
 * "load" without "path" takes the model of that name from the configuration; "settings" may be left out. The replies to
 * "load" and "unload", without rows, come when the model is served, or its memory is free.
 *
 * "drain" has two replies: one at once, with a row {"pid": number}, and one without rows with the result, before
 * the daemon closes the connection. Other requests may come in between.
 */

#include "ipc/msg.h"

#define ADMIN_REQUEST_MAX 4096u      /* bytes behind the length */
#define ADMIN_REPLY_MAX MSG_SOCKET_MAX /* of one message of a reply */

#define ADMIN_OP "op"
#define ADMIN_SESSION "session"
#define ADMIN_REQUEST "request"
#define ADMIN_MODEL "model"
#define ADMIN_GRAPH "graph"
#define ADMIN_SETTING "setting"
#define ADMIN_PATH "path"
#define ADMIN_SETTINGS "settings"
#define ADMIN_STATUS "status"
#define ADMIN_TEXT "text"
#define ADMIN_MORE "more"
#define ADMIN_ROWS "rows"

#endif
