# dapl.sh ofa|scm DEVICE PROGRAM [ARGUMENT...]: becomes a program of DAPL that finds that device as the adapter
# "siwarp", of the provider that connects by rdma_cm (ofa), or by sockets of its own (scm).
provider=$1 device=$2
shift 2
conf=$(mktemp dat.XXXXXX) || exit 2
case $provider in
ofa) library=ofa adapter="${device#siw_} 0" ;;
*) library=oscm adapter="$device 1" ;;
esac
echo "siwarp u2.0 nonthreadsafe default libdapl$library.so.2 dapl.2.0 \"$adapter\" \"\"" >"$conf"
DAT_OVERRIDE=$PWD/$conf exec "$@"
