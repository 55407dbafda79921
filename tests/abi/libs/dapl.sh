# dapl.sh ofa|scm DEVICE PROGRAM [ARGUMENT...]: a program of DAPL with that device as its adapter,
# of the provider that connects by rdma_cm (ofa), or by sockets of its own (scm).
provider=$1 device=$2
shift 2
conf=$(mktemp) || exit 2
case $provider in
ofa) library=ofa adapter="${device#siw_} 0" ;;
*) library=oscm adapter="$device 1" ;;
esac
echo "siwarp u2.0 nonthreadsafe default libdapl$library.so.2 dapl.2.0 \"$adapter\" \"\"" >"$conf"
program=$1
shift
DAT_OVERRIDE=$conf "$program" -P siwarp "$@"
status=$?
rm "$conf"
exit $status
