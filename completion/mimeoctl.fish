# SPDX-License-Identifier: MIT
# fish: mimeoctl says what may come next, and asks the daemon for names.
function __mimeoctl_candidates
	set -l words (commandline -opc)
	set -l current (commandline -ct)
	set -l program $words[1]
	set -e words[1]
	$program complete -- $words "$current" 2>/dev/null
end

complete -c mimeoctl -f -a '(__mimeoctl_candidates)'
complete -c mimeoctl -l socket -r -F
