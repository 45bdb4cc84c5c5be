# SPDX-License-Identifier: MIT
"""Text from the models of mimeod, through libmimeo and libmimeo-text by ctypes alone.

    import mimeo

    with mimeo.Mimeo() as m:
        print(m.models())
        for text in m.generate("The capital of France is", max_tokens=16):
            print(text, end="", flush=True)
        answer = "".join(m.chat([{"role": "user", "content": "What is the capital of France?"}]))

Run as a program it is a chat:  python3 mimeo.py [MODEL]

The libraries are found as the dynamic linker finds them (LD_LIBRARY_PATH). An object belongs to one thread at a time.
Each of these generators submits its request with the first item, and cancels it if it is closed early. One at a time can
have begun.
"""
import ctypes
import json
import sys
import weakref
from ctypes import POINTER, byref, c_char, c_char_p, c_float, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

_mimeo = ctypes.CDLL("libmimeo.so.0")
_text = ctypes.CDLL("libmimeo-text.so.0")
_libc = ctypes.CDLL(None)

E_UNKNOWN_MODEL = -7
_FINAL = 2  # enum mimeo_event_kind
_CANCELLED = -4
_SAMPLING_SEEDED, _SAMPLING_MODEL = 1, 2
_IGNORE_EOS = 1
_SPECIAL, _SKIP_SPECIAL = 1, 4


class MimeoError(Exception):
    def __init__(self, status, message):
        super().__init__(message or _mimeo.mimeo_strerror(status).decode())
        self.status = status


# ---- structs of <mimeo/mimeo.h>, <mimeo/types.h> and <mimeo/text.h> ----

class _Config(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("socket_path", c_char_p), ("name", c_char_p), ("entries", c_uint32),
        ("spin_us", c_uint32), ("arena_bytes", c_uint64), ("connect_timeout_ms", c_uint32), ("reserved", c_uint32),
        ("message", POINTER(c_char)), ("message_size", c_size_t)]


class _Sampling(ctypes.Structure):
    _fields_ = [("temperature", c_float), ("top_p", c_float), ("min_p", c_float), ("top_k", c_uint32),
        ("seed", c_uint64), ("flags", c_uint32), ("reserved", c_uint32)]


class _Place(ctypes.Structure):
    _fields_ = [("buffer", c_uint32), ("reserved", c_uint32), ("offset", c_uint64)]


class _Mask(ctypes.Structure):
    _fields_ = [("kind", c_uint32), ("window", c_uint32), ("sinks", c_uint32), ("prefix", c_uint32),
        ("words", c_void_p)]


class _Generate(ctypes.Structure):
    """As of 0.1.0: the library takes the fields that it has beyond these for zero."""
    _fields_ = [("size", c_size_t), ("model", c_uint32), ("sequence", c_uint32), ("tokens", POINTER(c_int32)),
        ("n_tokens", c_uint32), ("max_tokens", c_uint32), ("sampling", _Sampling), ("stop", POINTER(c_int32)),
        ("n_stop", c_uint32), ("flags", c_uint32), ("deadline_ms", c_uint32), ("draft_tokens", c_uint32),
        ("logits", _Place), ("mask", _Mask), ("first_token_ms", c_uint32), ("reserved", c_uint32)]


class _Event(ctypes.Structure):
    _fields_ = [("user_data", c_uint64), ("kind", c_uint32), ("status", c_int32), ("finish", c_uint32),
        ("sequence", c_uint32), ("n_prompt", c_uint32), ("n_generated", c_uint32), ("tokens", POINTER(c_int32)),
        ("n_tokens", c_uint32), ("rest", c_uint32 * 127)]  # what later versions have, too


class _ModelInfo(ctypes.Structure):
    _fields_ = [("name", c_char * 64), ("vocab_size", c_uint32), ("hidden_size", c_uint32),
        ("max_seq_len", c_uint32)]


class _Files(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("tokenizer", c_int), ("config", c_int), ("chat_template", c_int),
        ("reserved", c_int)]


class _StreamConfig(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("flags", c_uint32), ("n_stop", c_uint32), ("stop", POINTER(c_char_p)),
        ("before", POINTER(c_int32)), ("n_before", c_size_t)]


def _declare(library, name, result, *arguments):
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments


_declare(_mimeo, "mimeo_strerror", c_char_p, c_int)
_declare(_mimeo, "mimeo_connect", c_int, POINTER(c_void_p), POINTER(_Config))
_declare(_mimeo, "mimeo_close", None, c_void_p)
_declare(_mimeo, "mimeo_model_count", c_uint32, c_void_p)
_declare(_mimeo, "mimeo_model_get", POINTER(_ModelInfo), c_void_p, c_uint32)
_declare(_mimeo, "mimeo_model_find", c_int, c_void_p, c_char_p)
_declare(_mimeo, "mimeo_model_files", c_int, c_void_p, c_uint32, POINTER(_Files))
_declare(_mimeo, "mimeo_buffer_message", c_char_p, c_void_p)
_declare(_mimeo, "mimeo_request_get", c_void_p, c_void_p)
_declare(_mimeo, "mimeo_request_put", None, c_void_p)
_declare(_mimeo, "mimeo_request_id", c_uint64, c_void_p)
_declare(_mimeo, "mimeo_request_message", c_char_p, c_void_p)
_declare(_mimeo, "mimeo_request_prep_generate", c_int, c_void_p, POINTER(_Generate))
_declare(_mimeo, "mimeo_submit", c_int, c_void_p)
_declare(_mimeo, "mimeo_cancel", c_int, c_void_p, c_uint64)
_declare(_mimeo, "mimeo_event_wait", c_int, c_void_p, POINTER(_Event), c_int)
_declare(_mimeo, "mimeo_event_seen", None, c_void_p, POINTER(_Event))
_declare(_mimeo, "mimeo_event_message", c_int, POINTER(_Event), POINTER(c_char), c_size_t)
_declare(_text, "mimeo_text_open_files", c_int, POINTER(c_void_p), POINTER(_Files), POINTER(c_char), c_size_t)
_declare(_text, "mimeo_text_close", None, c_void_p)
_declare(_text, "mimeo_text_encode", c_int, c_void_p, c_char_p, c_size_t, c_uint32,
    POINTER(POINTER(c_int32)), POINTER(c_size_t))
_declare(_text, "mimeo_text_decode", c_int, c_void_p, POINTER(c_int32), c_size_t, c_uint32, POINTER(c_void_p),
    POINTER(c_size_t))
_declare(_text, "mimeo_text_chat", c_int, c_void_p, c_char_p, c_size_t, POINTER(POINTER(c_int32)),
    POINTER(c_size_t), POINTER(c_char), c_size_t)
_declare(_text, "mimeo_text_stream_new", c_int, POINTER(c_void_p), c_void_p, POINTER(_StreamConfig))
_declare(_text, "mimeo_text_stream_free", None, c_void_p)
_declare(_text, "mimeo_text_stream_push", c_int, c_void_p, POINTER(c_int32), c_size_t, POINTER(c_void_p),
    POINTER(c_size_t))
_declare(_text, "mimeo_text_stream_end", c_int, c_void_p, POINTER(c_void_p), POINTER(c_size_t))
_declare(_libc, "free", None, c_void_p)
_declare(_libc, "close", c_int, c_int)


def _check(status, message=""):
    if status < 0:
        raise MimeoError(status, message.value.decode(errors="replace") if hasattr(message, "value") else message)
    return status


class Mimeo:
    """A session at mimeod."""

    def __init__(self, socket=None, name="python"):
        message = ctypes.create_string_buffer(256)
        config = _Config(size=ctypes.sizeof(_Config), socket_path=socket and str(socket).encode(),
            name=name.encode(), spin_us=0, message=message, message_size=len(message))
        self._m, self._texts, self._active = c_void_p(), {}, None
        _check(_mimeo.mimeo_connect(byref(self._m), byref(config)), message)

    def close(self):
        answer = self._active and self._active()
        if answer:
            answer.close()
        for text in self._texts.values():
            _text.mimeo_text_close(text)
        _mimeo.mimeo_close(self._m)
        self._m, self._texts = None, {}

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.close()

    def models(self):
        """The names of the models."""
        return [_mimeo.mimeo_model_get(self._m, i).contents.name.decode()
            for i in range(_mimeo.mimeo_model_count(self._m))]

    def encode(self, text, model=None, special=True):
        """The text's token ids; `special`: with those that the tokenizer adds, such as a begin token."""
        ids, n, data = POINTER(c_int32)(), c_size_t(), text.encode()
        _check(_text.mimeo_text_encode(self._text(self._index(model)), data, len(data), _SPECIAL if special else 0,
            byref(ids), byref(n)))
        return self._take(ids, n)

    def decode(self, ids, model=None):
        """The text of token ids, without special tokens."""
        text, n, array = c_void_p(), c_size_t(), (c_int32 * len(ids))(*ids)
        _check(_text.mimeo_text_decode(self._text(self._index(model)), array, len(ids), _SKIP_SPECIAL, byref(text),
            byref(n)))
        result = ctypes.string_at(text, n.value).decode()
        _libc.free(text)
        return result

    def generate(self, prompt, model=None, **options):
        """Go on with a text, or with a list of token ids, and yield the answer piece by piece. Options: max_tokens (0:
        until the end), temperature (None: the model's own sampling; 0: greedy), top_p, top_k, min_p, seed, stop (a
        list of strings), ignore_eos."""
        ids = self.encode(prompt, model) if isinstance(prompt, str) else prompt
        return self._begin(self._index(model), ids, **options)

    def chat(self, messages, model=None, tools=None, variables=None, **options):
        """Answer a chat: a list of {"role": ..., "content": ...}, by the model's template. `variables`: further ones of
        the template. Options as of generate."""
        request = {**(variables or {}), "messages": messages, **({"tools": tools} if tools else {})}
        index, data = self._index(model), json.dumps(request).encode()
        ids, n, message = POINTER(c_int32)(), c_size_t(), ctypes.create_string_buffer(256)
        _check(_text.mimeo_text_chat(self._text(index), data, len(data), byref(ids), byref(n), message,
            len(message)), message)
        return self._begin(index, self._take(ids, n), **options)

    # ---- within ----

    def _index(self, model):
        return 0 if model is None else _check(_mimeo.mimeo_model_find(self._m, model.encode()))

    def _text(self, index):
        """The model's tokenizer, opened when it is needed first."""
        if index not in self._texts:
            text, message = c_void_p(), ctypes.create_string_buffer(256)
            files = _Files(ctypes.sizeof(_Files), -1, -1, -1, -1)
            _check(_mimeo.mimeo_model_files(self._m, index, byref(files)),
                _mimeo.mimeo_buffer_message(self._m).decode())
            status = _text.mimeo_text_open_files(byref(text), byref(files), message, len(message))
            for fd in (files.tokenizer, files.config, files.chat_template):
                if fd >= 0:
                    _libc.close(fd)
            _check(status, message)
            self._texts[index] = text
        return self._texts[index]

    @staticmethod
    def _take(ids, n):
        result = ids[:n.value]
        _libc.free(ids)
        return result

    def _stream(self, index, ids, stop):
        stream, strings = c_void_p(), (c_char_p * len(stop))(*(text.encode() for text in stop))
        config = _StreamConfig(ctypes.sizeof(_StreamConfig), _SKIP_SPECIAL, len(stop), strings, ids, len(ids))
        _check(_text.mimeo_text_stream_new(byref(stream), self._text(index), byref(config)))
        return stream

    def _submit(self, generate):
        request = _mimeo.mimeo_request_get(self._m)
        if not request:
            raise MimeoError(-1, "too many requests are in flight")
        status = _mimeo.mimeo_request_prep_generate(request, byref(generate))
        if status < 0:
            message = _mimeo.mimeo_request_message(request).decode()
            _mimeo.mimeo_request_put(request)
            raise MimeoError(status, message)
        _check(_mimeo.mimeo_submit(self._m))
        return _mimeo.mimeo_request_id(request)

    def _begin(self, index, ids, **options):
        """_answer, which knows itself; only its caller keeps it alive."""
        own = []
        answer = self._answer(own, index, ids, **options)
        own.append(weakref.ref(answer))
        return answer

    def _answer(self, own, index, ids, max_tokens=0, temperature=None, top_p=1, top_k=0, min_p=0, seed=None, stop=(),
            ignore_eos=False):
        if not self._m or self._active:
            raise MimeoError(-1, "another answer has begun" if self._m else "the session is closed")
        array = (c_int32 * len(ids))(*ids)
        sampling = _Sampling(temperature or 0, top_p, min_p, top_k, seed or 0,
            (_SAMPLING_SEEDED if seed is not None else 0) | (_SAMPLING_MODEL if temperature is None else 0))
        generate = _Generate(size=ctypes.sizeof(_Generate), model=index, tokens=array, n_tokens=len(ids),
            max_tokens=max_tokens, sampling=sampling, flags=_IGNORE_EOS if ignore_eos else 0)
        stream = self._stream(index, array, stop)
        self._active = own.pop()
        try:
            yield from self._pieces(self._submit(generate), stream)
        finally:
            self._active = None
            _text.mimeo_text_stream_free(stream)

    def _pieces(self, request_id, stream):
        part, n, event, ended, final = c_void_p(), c_size_t(), _Event(), False, False

        def piece():
            return ctypes.string_at(part, n.value).decode()
        try:
            while not final:
                # By parts, between which Python sees Ctrl-C.
                while _check(_mimeo.mimeo_event_wait(self._m, byref(event), 100)) == 0:
                    pass
                final = event.kind == _FINAL
                status, message = event.status, ctypes.create_string_buffer(256)
                _mimeo.mimeo_event_message(byref(event), message, len(message))
                found = _check(_text.mimeo_text_stream_push(stream, event.tokens, event.n_tokens, byref(part), byref(n)))
                _mimeo.mimeo_event_seen(self._m, byref(event))
                if status < 0 and not (ended and status == _CANCELLED):
                    _check(status, message)
                if n.value > 0 and not ended:
                    yield piece()
                if found and not ended:
                    ended = True
                    _mimeo.mimeo_cancel(self._m, request_id)
            if not ended:
                _check(_text.mimeo_text_stream_end(stream, byref(part), byref(n)))
                if n.value > 0:
                    yield piece()
        finally:
            if not final and self._m:
                self._drain(request_id, event)

    def _drain(self, request_id, event):
        """The generator was closed early: events of the request must not meet the next one."""
        _mimeo.mimeo_cancel(self._m, request_id)
        while _mimeo.mimeo_event_wait(self._m, byref(event), -1) == 1:
            final = event.kind == _FINAL
            _mimeo.mimeo_event_seen(self._m, byref(event))
            if final:
                break


def _main():
    history = []
    with Mimeo() as m:
        model = sys.argv[1] if len(sys.argv) > 1 else None
        if model and model not in m.models():
            sys.exit(f"mimeo.py: no model {model}; the daemon serves: {', '.join(m.models())}")
        for line in sys.stdin:
            history.append({"role": "user", "content": line.rstrip("\n")})
            answer = ""
            for piece in m.chat(history, model):
                print(piece, end="", flush=True)
                answer += piece
            print()
            history.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    _main()
