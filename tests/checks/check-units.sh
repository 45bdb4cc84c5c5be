#!/bin/sh
# SPDX-License-Identifier: MIT
# The units are right, confined as far as the daemon allows, and the example configuration can be served.
set -u
source=${MIMEO_SOURCE:?}
build=${MIMEO_BUILD:?}
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
n=0
failed=0

# report STATUS CLAIM
report() {
	n=$((n + 1))
	if [ "$1" = 0 ]; then
		echo "ok $n - $2"
	else
		sed 's/^/# /' "$folder/out"
		echo "not ok $n - $2"
		failed=1
	fi
}

sed "s,^dir = .*/mimeo/models,dir = $source/examples/models," "$build/systemd/mimeod.conf" >"$folder/mimeod.conf"
"$build/daemon/mimeod" --check-config --config "$folder/mimeod.conf" >"$folder/out" 2>&1
report $? "the example configuration can be served"

if [ -e "$build/systemd/mimeod.service" ] && command -v systemd-analyze >/dev/null; then
	sed "s,^ExecStart=.*,ExecStart=$build/daemon/mimeod,; /^Documentation/d" "$build/systemd/mimeod.service" \
		>"$folder/mimeod.service"
	sed /^Documentation/d "$source/systemd/mimeod.socket" >"$folder/mimeod.socket"
	systemd-analyze verify "$folder/mimeod.service" "$folder/mimeod.socket" >"$folder/out" 2>&1 &&
		! [ -s "$folder/out" ]
	report $? "systemd accepts every line of the units"
	mkdir "$folder/user"
	sed "s,^ExecStart=.*,ExecStart=$build/daemon/mimeod,; /^Documentation/d" "$build/systemd/user/mimeod.service" \
		>"$folder/user/mimeod.service"
	sed /^Documentation/d "$source/systemd/user/mimeod.socket" >"$folder/user/mimeod.socket"
	XDG_RUNTIME_DIR="$folder/user" systemd-analyze verify --user "$folder/user/mimeod.service" \
		"$folder/user/mimeod.socket" >"$folder/out" 2>&1 && ! [ -s "$folder/out" ]
	report $? "systemd accepts every line of a user's units"
	systemd-analyze security --offline=true --threshold=10 "$folder/mimeod.service" >"$folder/out" 2>&1
	report $? "the service's exposure is 1.0 at most"
else
	echo "# skipped: units: there is no systemd-analyze, or the build is without systemd"
fi
if [ "$(id -u)" = 0 ] && command -v systemd-sysusers >/dev/null && command -v systemd-tmpfiles >/dev/null; then
	mkdir "$folder/etc"
	systemd-sysusers --root="$folder" "$source/systemd/mimeo.sysusers" >"$folder/out" 2>&1 &&
		grep -q ^mimeo: "$folder/etc/passwd" && grep -q ^mimeo: "$folder/etc/group"
	report $? "the user and its group are made"
	systemd-tmpfiles --root="$folder" --create "$source/systemd/mimeo.tmpfiles" >"$folder/out" 2>&1 &&
		[ -d "$folder/run/mimeo" ]
	report $? "the sockets' directory is made"
else
	echo "# skipped: users: needs root, systemd-sysusers and systemd-tmpfiles"
fi
echo "1..$n"
exit $failed
