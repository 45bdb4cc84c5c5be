# SPDX-License-Identifier: MIT
# bash: mimeoctl says what may come next, and asks the daemon for names.
_mimeoctl()
{
	local candidate about

	COMPREPLY=()
	while IFS=$'\t' read -r candidate about; do
		COMPREPLY+=("$candidate")
	done < <("$1" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _mimeoctl mimeoctl
