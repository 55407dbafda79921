# gloo_ranks.sh PROGRAM DEVICE RANKS ROUNDS OTHER-DEVICE [COMMAND...]: all ranks here, or, with a
# command that runs what follows elsewhere, the last one there, on the other device. Ends when all
# have ended; status 0 if each had.
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
