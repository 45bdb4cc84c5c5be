#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""No source files of the product depend on each other in a cycle. Speaks TAP.

A file depends on another if its object has an undefined symbol that the other's object defines.
The two device tables are excepted: a table names each function of its device, and these call back
into the file that holds the table.

	check_cycles.py BUILD            one line for each cycle, with the symbols that close it
	check_cycles.py BUILD --edges    also each dependency as "FILE FILE SYMBOL..."
"""
import collections
import pathlib
import re
import subprocess
import sys

PRODUCT = ("ipc", "kernels", "attention", "sdk", "daemon")
EXCEPTED = (r"kernels/cpu_\w+\.c", r"kernels/(cuda_\w+\.c|\w+\.cu)")


def read_symbols(build):
    """({target: {symbol: source}}, {(target, source): {undefined symbol}})"""
    objects = [path for top in PRODUCT for path in sorted((build / top).rglob("*.o"))]
    out = subprocess.run(["nm", "-A", "--format=posix", *map(str, objects)], check=True,
                         capture_output=True, text=True).stdout
    defined, wanted = collections.defaultdict(dict), collections.defaultdict(set)
    for line in out.splitlines():
        name, rest = line.split(": ", 1)
        symbol, kind = rest.split()[:2]
        parts = pathlib.Path(name).relative_to(build).parts
        target, source = parts[:-1], parts[0] + "/" + parts[-1].removesuffix(".o")
        wanted[target, source].update([symbol] if kind == "U" else [])
        if kind in "TDBRVWG" and symbol != "main":
            defined[target][symbol] = source
    return defined, wanted


def read_edges(build):
    """{source: {source that it needs: {symbols}}}"""
    defined, wanted = read_symbols(build)
    libraries = {}
    for target, symbols in defined.items():
        if ".a." in target[-1] or ".so." in target[-1]:
            libraries.update(symbols)
    edges = {source: collections.defaultdict(set) for _, source in wanted}
    for (target, source), symbols in wanted.items():
        for symbol in symbols:
            owner = defined[target].get(symbol) or libraries.get(symbol)
            if owner and owner != source:
                edges[source][owner].add(symbol)
    return edges


def components(edges):
    """Strongly connected components of more than one file (Tarjan 1972)."""
    index, low, stack, found = {}, {}, [], []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in sorted(edges[v]):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            at = stack.index(v)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for v in sorted(edges):
        if v not in index:
            visit(v)
    return found


def main():
    sys.setrecursionlimit(10000)
    edges = read_edges(pathlib.Path(sys.argv[1]).resolve())
    cycles = [c for c in components(edges)
              if not any(all(re.fullmatch(e, f) for f in c) for e in EXCEPTED)]
    n_edges = sum(len(needs) for needs in edges.values())
    print("1..1")
    print("not ok 1" if cycles or not n_edges else "ok 1", "- no source files depend on each other in a cycle")
    print(f"# {len(edges)} files, {n_edges} dependencies, {len(cycles)} cycles")
    for cycle in cycles:
        print("# cycle:", " ".join(cycle))
        for source in cycle:
            for other in cycle:
                if other in edges[source]:
                    print(f"#   {source} needs {other}: {' '.join(sorted(edges[source][other])[:6])}")
    if "--edges" in sys.argv:
        for source in sorted(edges):
            for other in sorted(edges[source]):
                print(source, other, *sorted(edges[source][other]))
    return 1 if cycles or not n_edges else 0


if __name__ == "__main__":
    sys.exit(main())
