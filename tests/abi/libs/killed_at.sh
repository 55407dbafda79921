# killed_at.sh FUNCTION COUNT PROGRAM [ARGUMENT...]: runs a program until it has returned from its call number
# COUNT of FUNCTION, and kills it there: gdb kills by SIGKILL what it still has at its end.
function=$1 before=$(($2 - 1))
shift 2
exec gdb -q -batch -ex 'set breakpoint pending on' -ex "break $function" -ex "ignore 1 $before" \
	-ex run -ex finish --args "$@"
