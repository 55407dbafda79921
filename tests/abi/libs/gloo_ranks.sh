# gloo_ranks.sh PROGRAM DEVICE RANKS ROUNDS OTHER-DEVICE [COMMAND...]: starts all ranks here. If
# there is a command that runs its arguments elsewhere, the last rank is started with it, on the
# other device. Waits for all ranks; the exit status is 0 if all of them succeeded.
program=$1 device=$2 ranks=$3 rounds=$4 other=$5
shift 5
store=$(mktemp -d) || exit 2
rank=0 pids='' status=0
while [ "$rank" -lt "$ranks" ]; do
	if [ $# -gt 0 ] && [ "$rank" -eq $((ranks - 1)) ]; then
		"$@" "$program" "$other" "$store" "$ranks" "$rank" "$rounds" &
	else
		"$program" "$device" "$store" "$ranks" "$rank" "$rounds" &
	fi
	pids="$pids $!"
	rank=$((rank + 1))
done
for pid in $pids; do
	wait "$pid" || status=1
done
rm -r "$store"
exit $status
