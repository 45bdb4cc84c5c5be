#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The examples of the manual pages: C is compiled and run, commands are run, configurations are read; and a program
outside the tree is built by pkg-config.

A block of C is the body of a function; BEFORE has what its text says is there. Paths of the pages are those of a test's
folder. tinycalc is served with a tokenizer and with masks.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "http"))
import rig  # noqa: E402

PAGES = sorted((rig.SOURCE / "man").glob("*.scd"))
CC = [os.environ.get("CC", "cc"), "-std=gnu17", "-Wall", "-Wextra", "-Werror", "-Wno-unused"]
LIBRARIES = {"LD_LIBRARY_PATH": ":".join(str(rig.BUILD / folder) for folder in ("sdk", "sdk/text"))}
PROGRAMS = [rig.BUILD / "daemon", rig.BUILD / "examples"]

# What the blocks of a page need, in their order: statements before them, "" for none; None: a reason is in SKIPPED.
TEXT = "struct mimeo_text *text = open_text(); int32_t *ids; size_t n_ids; char message[256];"
ASKED = "prompt[] = {1, '1', '+', '1', '='}; uint32_t n_prompt = 5;"
GENERATE = f"const int32_t {ASKED} struct mimeo_generate generate = MIMEO_GENERATE_INIT; generate.tokens = prompt;" \
           "generate.n_tokens = n_prompt; generate.max_tokens = 4;"
BEFORE = {
    "mimeo_buffer.3": [None],
    "mimeo_connect.3": ["", ""],
    "mimeo_event.3": ["ask(m);"],
    "mimeo_model.3": [""],
    "mimeo_request.3": [
        "uint32_t a = opened(m), b = opened(m); int32_t token_a = 49, token_b = 50;",
        "",
        "uint32_t a = opened(m), n_before = 0; int32_t root = 49, left = 50, right = 51;"
        "struct mimeo_step step = MIMEO_STEP_INIT; struct mimeo_request *r = mimeo_request_get(m);",
        GENERATE],
    "mimeo_sequence.3": [
        "int r; uint32_t ids[4], n = 0, model = 0; struct mimeo_event e;",
        GENERATE + "uint32_t model = 0; struct mimeo_generate common = generate, first = generate, second = generate;"
        "struct mimeo_request *r = mimeo_request_get(m), *r1 = mimeo_request_get(m), *r2 = mimeo_request_get(m);"
        "common.max_tokens = 1;"],
    "mimeo_status.3": [""],
    "mimeo_submit.3": [f"const int32_t {ASKED}"],
    "mimeo_text.3": [""],
    "mimeo_text_chat.3": [TEXT],
    "mimeo_text_encode.3": ["struct mimeo_text *text = open_text();"],
    "mimeo_text_stream.3": [
        TEXT.replace("int32_t *ids", "int32_t ids[8]") + "struct mimeo_text_stream *stream; int rc; size_t n, length;"
        "const char *utf8; if (mimeo_text_stream_new(&stream, text, NULL) < 0) return -1;"],
}
SKIPPED = {"mimeo_buffer.3": "needs CUDA"}
PROGRAM = r"""
#include <err.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <mimeo/mimeo.h>
#include <mimeo/text.h>

static void use(const void *first, ...)
{
}
static void read_line(void)
{
	exit(0);
}
static size_t next_ids(int32_t *ids)
{
	static size_t n = 4;

	ids[0] = '0' + (int32_t)n;
	return n ? n-- > 0 : 0;
}
static struct mimeo_text *open_text(void)
{
	struct mimeo_text *text;
	char message[256];

	if (mimeo_text_open(&text, "/models/smollm2", message, sizeof(message)) < 0)
		errx(2, "%s", message);
	return text;
}
static uint32_t opened(struct mimeo *m)
{
	uint32_t sequence = 0;

	if (mimeo_sequence_open(m, 0, &sequence) < 0)
		errx(2, "no sequence");
	return sequence;
}
static void ask(struct mimeo *m)
{
	static const int32_t prompt[] = {1, '1', '+', '1', '='};
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;

	generate.tokens = prompt;
	generate.n_tokens = 5;
	generate.max_tokens = 4;
	if (mimeo_request_prep_generate(mimeo_request_get(m), &generate) < 0 || mimeo_submit(m) < 0)
		errx(2, "no request");
}
static int example(struct mimeo *m)
{
	{
@BLOCK@
	}
	return 0;
}
int main(void)
{
	struct mimeo_event e;
	char text[256];
	struct mimeo *m;

	if (mimeo_connect(&m, NULL) < 0 || example(m) < 0)
		errx(2, "the example failed");
	while (mimeo_event_wait(m, &e, 300) == 1) {
		mimeo_event_message(&e, text, sizeof(text));
		if (e.status < 0)
			errx(2, "%s: %s", mimeo_status_name(e.status), text);
		mimeo_event_seen(m, &e);
	}
	mimeo_close(m);
	return 0;
}
"""

# Commands that are not run, by their page and a part of their text.
NOT_RUN = [("mimeo-bench.1", "--shape 8B", "needs a GPU"), ("mimeo-bench.1", "Llama-3.2-1B", "needs models"),
           ("mimeo-bench.1", "--plot", "takes minutes"), ("mimeo-bench.1", "--json ring", "takes a minute"),
           ("mimeo-performance.7", "", "takes a minute"), ("mimeo-http.8", "", "servers in the foreground")]
# Where a page's command needs more than the test has: others, of the same kind.
INSTEAD = [("--model llama --tokens 128000,9906,1917", "--model tinycalc --tokens 1,49,50"), ("-d 60", "-d 0.2")]
SHELL = r"""
set -euo pipefail
mimeoctl() {
	case "$*" in
	doctor | *"sessions kill 7" | "requests cancel 1234") command mimeoctl "$@" || [ $? = 1 ] ;;
	*top*) command mimeoctl "$@" --count 1 ;;
	*) command mimeoctl "$@" ;;
	esac
}
"""
# Daemons in the foreground only read their options; those in the background serve, on a socket of their own.
CHECKS = 'mimeod() { command mimeod --check-config "$@" >/dev/null; }\n'
SERVES = 'mimeod() { exec mimeod --kv-pages 64 --capture-sizes 1 "$@" 2>/dev/null; }\n' \
         r'trap "kill \$(jobs -p)" EXIT' "\n"


def examples(page):
    """The blocks under EXAMPLES."""
    blocks, block, heading = [], None, ""
    for line in page.read_text().splitlines():
        if line == "```":
            if block is not None and heading == "# EXAMPLES":
                blocks.append("\n".join(block).replace("\\\\", "\\") + "\n")
            block = [] if block is None else None
        elif block is not None:
            block.append(line)
        elif line.startswith("# "):
            heading = line
    return blocks


def pages(*sections):
    return [page for page in PAGES if page.stem[-1] in sections]


def here(text):
    """With the test's paths in place of the pages'."""
    for name, path in (("/usr/local/share/mimeo", folder / "share"), ("examples/models/", f"{folder}/share/models/"),
                       ("/models/smollm2", rig.shared.daemon.model), ("/srv/a", folder / "share/models/tinycalc"),
                       ("/srv/b", folder / "share/models/tinycalc"), ("/tmp/m.sock", rig.shared.daemon.socket)):
        text = text.replace(name, str(path))
    return re.sub(r"/srv/models/\S+", str(folder / "share/models/tinycalc"), text)


def environment():
    return {**os.environ, **LIBRARIES, "MIMEO_SOCKET": str(rig.shared.daemon.socket),
            "PATH": ":".join([*map(str, PROGRAMS), os.environ["PATH"]])}


def run(argv, **more):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=rig.PATIENCE, env=environment(), cwd=folder,
                          **more)
    assert done.returncode == 0, (done.returncode, argv, done.stderr or done.stdout)
    return done.stdout


def test_every_page_has_examples():
    assert not [page.stem for page in PAGES if not examples(page)]
    assert sorted(BEFORE) == [page.stem for page in pages("3")]


def test_examples_in_c_are_compiled_and_run():
    source, program = folder / "example.c", folder / "example"
    for page in pages("3"):
        blocks = examples(page)
        assert len(blocks) == len(BEFORE[page.stem]), page
        for before, block in zip(BEFORE[page.stem], blocks):
            if before is None:
                print(f"# skipped: {page.stem}: {SKIPPED[page.stem]}")
                continue
            source.write_text(here(PROGRAM.replace("@BLOCK@", before + "\n" + block)))
            run([*CC, "-I", str(rig.SOURCE / "sdk/include"), "-I", str(rig.SOURCE / "sdk/text/include"), "-I",
                 str(rig.SOURCE / "ipc/include"), str(source), "-o", str(program), "-L", str(rig.BUILD / "sdk"), "-L",
                 str(rig.BUILD / "sdk/text"), "-lmimeo", "-lmimeo-text"])
            run([str(program)], stdin=subprocess.DEVNULL)


def reason_not_to_run(page, block, used):
    for entry in NOT_RUN:
        name, part, why = entry
        if name == page and part in block:
            used.add(entry)
            return why
    return None


def test_examples_of_commands_run():
    used = set()
    for page in pages("1", "7", "8"):
        for block in examples(page):
            why = reason_not_to_run(page.stem, block, used)
            if why:
                print(f"# skipped: {page.stem}: {block.splitlines()[0]}: {why}")
                continue
            for entry in INSTEAD:
                if entry[0] in block:
                    used.add(entry)
                block = block.replace(*entry)
            if "jq " in block and not shutil.which("jq"):
                print(f"# skipped: {page.stem}: {block.splitlines()[0]}: there is no jq")
                continue
            if " &\n" in block:
                block = SERVES + block.replace("/tmp/m.sock", f"{folder}/own.sock")
            else:
                block = CHECKS + block
            run(["bash", "-c", SHELL + here(block)], input="1+1=\n")
    assert used == {*NOT_RUN, *INSTEAD}, {*NOT_RUN, *INSTEAD} - used


def test_examples_of_configurations_are_right():
    for block in examples(rig.SOURCE / "man" / "mimeod.conf.5.scd"):
        path = folder / "mimeod.conf"
        path.write_text(here(block))
        run([str(rig.BUILD / "daemon" / "mimeod"), "--check-config", "--config", str(path)])


def test_program_outside_the_tree_is_built_by_pkg_config():
    root = folder / "root"
    run(["meson", "install", "-C", str(rig.BUILD), "--no-rebuild", "--quiet", "--tags", "devel,runtime", "--destdir",
         str(root)])
    found = next(root.rglob("mimeo.pc")).parent
    (folder / "app.c").write_text(re.search(r"```c\n(.*?)```", (rig.SOURCE / "README.md").read_text(), re.DOTALL)[1])
    run(["sh", "-c", f"cc app.c -o app $(PKG_CONFIG_SYSROOT_DIR={root} PKG_CONFIG_PATH={found} "
         "pkg-config --cflags --libs mimeo)"])
    assert run(["env", f"LD_LIBRARY_PATH={found.parent}", "./app"]) == "46\n"


class Shared(rig.Rig):
    """No mimeo-http; a folder with what examples read."""

    def __init__(self):
        global folder
        super().__init__(daemon_options=["--attention", "flex"], start=False)
        folder = self.folder
        (folder / "share").mkdir()
        for name in ("examples", "tests"):
            (folder / name).symlink_to(rig.SOURCE / name)
        (folder / "share" / "models").symlink_to(rig.SOURCE / "examples" / "models")
        for name in ("NEWS.md", "book.txt"):
            (folder / name).write_text("1+1=2\n")
        self.daemon.start()
        rig.eventually(lambda: "serving" in self.daemon.ctl("status"), "mimeod serves")


if __name__ == "__main__":
    rig.Rig = Shared
    rig.run(sys.modules[__name__])
