# A minimal Debian in a temporary folder, for the scripts that source this file. The folder is
# removed at the end, even after a failure. From this machine it gets only the configuration that is
# needed to reach the package registries: apt's sources and methods, pip's configuration,
# certificates, host names. Mounts and processes are in namespaces, so that they end with the
# script, even if it is killed. Needs root.
#
# The system has git, make, python3, ca-certificates and the packages in `included`, HEAD of this
# tree as a bundle in /srv/siwarp, and a user `someone`. Logs are in `out`. Source tools/lib.sh
# first, set `out`, call make_machine; then `inside WHO COMMAND...`.
# shellcheck shell=bash

suite=bookworm
included=()
# Not in this tree: its path may contain a blank, which apt does not support.
root=$(mktemp -d /var/tmp/siwarp-fresh.XXXXXX)
chmod 755 "$root"
running=
leave() {
	[ -z "$running" ] || { kill -KILL "$running" && wait "$running"; } 2>/dev/null || true
	# The processes there have been killed, but may take a moment to disappear.
	local try
	for try in 1 2 3 4 5 6 7 8 9 10; do
		rm -rf --one-file-system -- "$root" 2>/dev/null && break
		sleep 0.5
	done
	[ ! -e "$root" ] || say "$root could not be removed after $try attempts"
	[ -z "${SUDO_UID:-}" ] || chown -R "$SUDO_UID:${SUDO_GID:-}" "$out"
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# wait_for COMMAND...: run it so that a signal to this script is handled before the command ends.
wait_for() {
	local status=0
	"$@" </dev/null &
	running=$!
	wait "$running" || status=$?
	running=
	return "$status"
}

# Use this machine's apt sources if they have this Debian, otherwise mmdebstrap's defaults.
bootstrap() {
	local sources=() fetching f
	for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
		[ -f "$f" ] && grep -q "^[^#]*\b$suite\b" "$f" && sources+=("$f")
	done
	mapfile -t fetching < <(apt-config dump | grep '^Acquire::')
	find "$root" -mindepth 1 -delete
	wait_for mmdebstrap --quiet --mode=root --variant=minbase --include="$(IFS=,; echo "git,make,python3,ca-certificates${included[*]:+,${included[*]}}")" \
		"${fetching[@]/#/--aptopt=}" "$suite" "$root" "${sources[@]}" >"$out/mmdebstrap.log" 2>&1
}

# carry PATH...: copy existing files to the same paths inside.
carry() {
	local f
	for f in "$@"; do
		[ -e "$f" ] || continue
		mkdir -p "$root$(dirname "$f")"
		cp -rLT -- "$f" "$root$f"
	done
}

# Copy the configuration that is needed to reach the registries from inside: files, variables
# (carried) with the files that they or pip's configuration name, and package folders that pip is
# configured to use (folders).
configure() {
	local v home conf
	carry /etc/apt/auth.conf /etc/apt/auth.conf.d /etc/apt/keyrings /etc/apt/trusted.gpg.d /etc/resolv.conf /etc/hosts \
		/usr/local/share/ca-certificates /etc/ssl/certs/ca-certificates.crt /etc/pip.conf /etc/xdg/pip/pip.conf
	for home in /root /home/someone; do
		for conf in "$HOME/.pip/pip.conf" "${XDG_CONFIG_HOME:-$HOME/.config}/pip/pip.conf"; do
			[ ! -f "$conf" ] || install -D -m 644 "$conf" "$root$home/.config/pip/pip.conf"
		done
	done
	# A second group, as most users have: a program that is setgid to it has more privileges.
	chroot "$root" useradd --shell /bin/bash --home-dir /home/someone --groups users someone
	mkdir -p "$root/home/someone"
	chroot "$root" chown -R someone: /home/someone
	while IFS= read -r -d '' v; do
		case ${v%%=*} in
		PIP_* | SSL_CERT_* | REQUESTS_CA_BUNDLE | CURL_CA_BUNDLE | *_proxy | *_PROXY) carried+=("$v") ;;
		esac
	done < <(env -0)
	mapfile -t folders < <(
		{ printf '%s\n' "${carried[@]}" && cat "$root"/etc/pip.conf "$root"/etc/xdg/pip/pip.conf "$root"/root/.config/pip/pip.conf; } 2>/dev/null |
			grep -oE '(file://|[ =])/[^ ]+' | sed 's|^[^/]*//*|/|' | sort -u | while read -r v; do
				# If an index is a folder, its pages refer to files in neighbouring
				# folders.
				if [ -d "$v" ]; then printf '%s\n' "${v%/simple}"; else carry "$v"; fi
			done
	)
}

# enter ROOT FOLDER... -- COMMAND...: in new namespaces, make ROOT the root and run the command
# there. A chroot is not enough, because user namespaces cannot be created in one.
enter() {
	local root=$1 f
	shift
	set -e
	mount --bind "$root" "$root"
	cd "$root"
	mount -t tmpfs -o mode=755 dev dev
	mkdir -p dev/pts dev/shm dev/net .outside
	while read -r f major minor; do mknod -m 666 "dev/$f" c "$major" "$minor"; done <<-END
		null 1 3
		zero 1 5
		full 1 7
		random 1 8
		urandom 1 9
		tty 5 0
		net/tun 10 200
	END
	ln -s /proc/self/fd dev/fd
	for f in stdin:0 stdout:1 stderr:2; do ln -s "/proc/self/fd/${f#*:}" "dev/${f%:*}"; done
	mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts dev/pts
	ln -s pts/ptmx dev/ptmx
	mount -t tmpfs -o mode=1777 shm dev/shm
	mount -t tmpfs -o mode=755 run run
	mount -t proc proc proc
	mount --rbind /sys sys
	while [ "$1" != -- ]; do
		mkdir -p ".$1"
		mount --bind "$1" ".$1"
		mount -o remount,bind,ro ".$1"
		shift
	done
	shift
	pivot_root . .outside
	cd /
	umount -l /.outside
	"$@"
}
export -f enter

# inside WHO COMMAND...: run the command inside, with the environment of a login.
inside() {
	local home=/root become=()
	# Users often have one of root's privileges: to raise the priority of a thread.
	[ "$1" = root ] || home=/home/someone become=(setpriv --reuid=someone --regid=someone --init-groups
		--inh-caps=-all,+sys_nice --ambient-caps=-all,+sys_nice)
	shift
	unshare --mount --pid --ipc --fork --kill-child --propagation private \
		bash -c 'enter "$@"' enter "$root" "${folders[@]}" -- "${become[@]}" \
		env -i --default-signal=INT HOME="$home" TERM=dumb LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
		${CI:+CI="$CI"} "${carried[@]}" "$@"
}

make_machine() {
	need_packages mmdebstrap || exit
	mkdir -p "$out"
	say "making a minimal Debian ($suite) in $root"
	retry mmdebstrap bootstrap || { cat "$out/mmdebstrap.log" >&2; die "mmdebstrap cannot make a minimal Debian: its messages are above"; }
	carried=() folders=()
	configure
	git -c safe.directory='*' bundle create --quiet "$root/srv/siwarp" HEAD
}
