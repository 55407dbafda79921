# dapl.sh ofa|scm DEVICE PROGRAM [ARGUMENT...]: executes a DAPL program that uses the device as the
# adapter "siwarp". The provider connects by rdma_cm (ofa) or by its own sockets (scm).
provider=$1 device=$2
shift 2
conf=$(mktemp dat.XXXXXX) || exit 2
case $provider in
ofa) library=ofa adapter="${device#siw_} 0" ;;
*) library=oscm adapter="$device 1" ;;
esac
echo "siwarp u2.0 nonthreadsafe default libdapl$library.so.2 dapl.2.0 \"$adapter\" \"\"" >"$conf"
DAT_OVERRIDE=$PWD/$conf exec "$@"
