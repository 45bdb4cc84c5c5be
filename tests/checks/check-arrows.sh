#!/bin/sh
# SPDX-License-Identifier: MIT
# Arrows (includes) only go down, and never in a circle between floors:
#   ipc, kernels -> nobody;  attention -> kernels;  sdk -> ipc;  daemon -> all of these, but of the
#   text library (sdk/text) only <mimeo/text.h>;
#   examples -> <mimeo/...> and themselves;  nobody includes tests or examples.
set -eu
cd "${MIMEO_SOURCE:-$(dirname "$0")/../..}"

bad=0
# folder, extended regular expression of the folders it may include from
check()
{
	lines=$(grep -rnE '^#[[:space:]]*include "[a-z_]+/' --include='*.[ch]' --include='*.cu' \
		--include='*.cuh' "$1" | grep -vE "#[[:space:]]*include \"($2)/" || true)
	[ -z "$lines" ] || { echo "$lines"; bad=1; }
}
check ipc 'ipc'
check kernels 'kernels'
check attention 'attention|kernels'
check sdk 'sdk|ipc'
check daemon 'daemon|attention|kernels|ipc|sdk'
lines=$(grep -rnE '^#[[:space:]]*include "' --include='*.[ch]' examples | grep -v '#include "examples/' || true)
[ -z "$lines" ] || { echo "$lines"; bad=1; }
lines=$(grep -rnE '^#[[:space:]]*include "sdk/text/' daemon || true)
[ -z "$lines" ] || { echo "$lines"; bad=1; }
# Programs that only talk to the daemon, or to no one, use the library's public face.
lines=$(grep -rnE '^#[[:space:]]*include "(daemon/(engine|graph|model|serve|loop)|attention|kernels|ipc)/' \
	daemon/run daemon/tokenize || true)
[ -z "$lines" ] || { echo "$lines"; bad=1; }
lines=$(grep -rnE '^#[[:space:]]*include "(daemon/(engine|graph|model|serve|loop|startup)|attention|kernels|sdk|ipc)/' \
	daemon/http | grep -v '"ipc/\(cleanup\|text\)\.h"' || true)
[ -z "$lines" ] || { echo "$lines"; bad=1; }
# Within the daemon: policy below does not know the floors above it.
lines=$(grep -rnE '^#[[:space:]]*include "daemon/(engine|serve)/' daemon/graph daemon/model daemon/loop || true)
[ -z "$lines" ] || { echo "$lines"; bad=1; }
lines=$(grep -rnE '^#[[:space:]]*include "daemon/serve/' daemon/engine || true)
[ -z "$lines" ] || { echo "$lines"; bad=1; }
# No CUDA in what a client links, or in the contract; one header is for clients that have it.
lines=$(grep -rnEi '^#[[:space:]]*include <(cuda|cublas)' ipc sdk | grep -v '^sdk/include/mimeo/mimeo-cuda\.h:' || true)
[ -z "$lines" ] || { echo "$lines"; bad=1; }

[ $bad = 0 ] && echo "ok 1 - arrows only go down" || echo "not ok 1 - arrows only go down"
echo 1..1
exit $bad
