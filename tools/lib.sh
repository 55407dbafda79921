# Functions shared by the scripts in tools/ and tests/: source this file from the repository's root.
# shellcheck shell=bash

say() { printf '%s\n' "siwarp: $*" >&2; }
die() { say "$*"; exit 1; }

# retry WHAT COMMAND...: up to three attempts, with increasing delays.
retry() {
	local what=$1 try
	shift
	for try in 1 2 3; do
		"$@" && return 0
		[ "$try" -lt 3 ] && { say "$what failed (attempt $try of 3), again in $((try * 5)) s"; sleep $((try * 5)); }
	done
	return 1
}

as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n -- "$@"; fi
}

apt_install() {
	mkdir -p build
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=180 -o Acquire::Retries=3 \
		install -y -qq --no-install-recommends "$@" >build/apt.log 2>&1 ||
		{ grep '^E:' build/apt.log >&2; return 1; }
}

apt_update() {
	as_root apt-get -o DPkg::Lock::Timeout=180 update -qq >&2
}

have_package() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# need_packages PACKAGE...: install missing packages with apt, or print the command to type and
# return 2.
need_packages() {
	local missing=() p
	for p in "$@"; do have_package "$p" || missing+=("$p"); done
	[ ${#missing[@]} -gt 0 ] || return 0
	if ! command -v apt-get >/dev/null; then
		say "missing: ${missing[*]} (Debian's names); install them with this system's package manager, then run the same command again"
		return 2
	fi
	if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
		say "missing system packages; as root, type: apt-get install -y --no-install-recommends ${missing[*]}"
		return 2
	fi
	# One at a time: apt does not wait for a concurrent update of its lists.
	mkdir -p build
	(flock 8 && install_packages "${missing[@]}") 8>build/.lock-apt
}

install_packages() {
	local missing=("$@") p
	say "installing with apt: ${missing[*]}"
	# Without package lists, or with old ones, this fails; the error is not shown, because the
	# lists are updated next.
	apt_install "${missing[@]}" 2>/dev/null && return 0
	retry "apt-get update" apt_update || { say "apt-get update failed three times"; return 1; }
	retry "apt-get install ${missing[*]}" apt_install "${missing[@]}" && return 0
	for p in "${missing[@]}"; do
		have_package "$p" || say "apt cannot install the package $p"
	done
	return 1
}

python_ok() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

# Return the interpreter itself, not a shim script.
real_python() { "$1" -c 'import os, sys; print(os.path.realpath(sys.executable))'; }

# find_python: $PYTHON if set, otherwise the first Python 3.10 or newer on PATH.
find_python() {
	local p
	for p in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3; do
		if command -v "$p" >/dev/null && python_ok "$p"; then real_python "$p"; return 0; fi
		[ "$p" = "${PYTHON:-}" ] && { say "PYTHON=$p is not a Python 3.10 or newer"; return 1; }
	done
	say "no Python 3.10 or newer on PATH; install one, or set PYTHON=/path/to/python3"
	return 1
}

# Whether the compiler finds the header that siwarp/abi implements.
has_verbs_h() { printf '#include <rdma/rdma_cma.h>\n' | "${CC:-cc}" -x c -E - >/dev/null 2>&1; }

# need_tools PYTHON [EXTRA...]: install the system packages for building, and those that an extra of
# pyproject.toml needs in addition to its Python packages, if their contents are missing.
need_tools() {
	local py=$1 want=() probe version
	shift
	probe=$(mktemp) || return 1
	if ! printf '#include <stdio.h>\nint main(void) { return puts("") < 0; }\n' |
		"${CC:-cc}" -x c - -o "$probe" 2>/dev/null; then
		want+=(gcc libc6-dev)
	fi
	rm -f "$probe"
	has_verbs_h || want+=(libibverbs-dev librdmacm-dev)
	command -v pkg-config >/dev/null || want+=(pkg-config)
	version=$("$py" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
	# Only Debian's own interpreter gets its headers and venv from a package.
	"$py" -c 'import pathlib, sys, sysconfig; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())' ||
		want+=(python3-dev "libpython$version-dev")
	"$py" -c 'import ensurepip, venv' 2>/dev/null || want+=(python3-venv "python$version-venv")
	[[ " $* " != *" test "* ]] || mapfile -t -O ${#want[@]} want < <(missing_for_tests)
	[ ${#want[@]} -eq 0 ] || need_packages "${want[@]}"
}

# Print the missing packages of programs that tests run: ip and tc make network namespaces (they may
# not be on a user's PATH), and C++ programs include the headers.
missing_for_tests() {
	local PATH=$PATH:/usr/sbin:/sbin
	{ command -v ip && command -v tc; } >/dev/null || echo iproute2
	command -v g++ >/dev/null || echo g++
}

# with_tools VENV COMMAND...: run with the venv's meson and ninja first on PATH.
with_tools() {
	local venv=$1
	shift
	PATH="$PWD/$venv/bin:$PATH" "$@"
}

pip_in() {
	local venv=$1
	shift
	with_tools "$venv" "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@"
}
