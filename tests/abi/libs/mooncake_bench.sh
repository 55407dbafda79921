# mooncake_bench.sh PYTHON DEVICE ADDRESS: the target; runs until the initiator ends it
# mooncake_bench.sh PYTHON DEVICE ADDRESS OPERATION SECONDS: the initiator; waits for a target
python=$1 device=$2 address=$3 operation=$4 seconds=$5
bench=$("$python" -c 'import mooncake; print(mooncake.__path__[0])')/transfer_engine_bench
common="--protocol=rdma --metadata_server=P2PHANDSHAKE --device_name=$device
--buffer_size=134217728 --logtostderr"
if [ -z "$operation" ]; then
	echo $$ >mooncake.pid
	# The target chooses its port and logs it.
	# shellcheck disable=SC2086
	exec "$bench" $common --mode=target --local_server_name="$address:12345" 2>mooncake.log
fi
tries=0
until target=$(grep -o 'listening on [0-9.:]*' mooncake.log 2>/dev/null); do
	tries=$((tries + 1))
	[ $tries -lt 300 ] || exit 2
	sleep 0.1
done
sleep 1 # it registers its memory
# shellcheck disable=SC2086
"$bench" $common --mode=initiator --local_server_name="$address:12346" \
	--segment_id="${target##* }" --operation="$operation" --duration="$seconds" \
	--threads=1 --batch_size=16
status=$?
read -r pid <mooncake.pid && kill "$pid" 2>/dev/null
rm -f mooncake.pid mooncake.log
exit $status
