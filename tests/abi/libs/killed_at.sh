# killed_at.sh FUNCTION COUNT PROGRAM [ARGUMENT...]: runs a program under gdb until its call number
# COUNT of FUNCTION has returned. gdb then exits, and kills the program with SIGKILL.
function=$1 before=$(($2 - 1))
shift 2
exec gdb -q -batch -ex 'set breakpoint pending on' -ex "break $function" -ex "ignore 1 $before" \
	-ex run -ex finish --args "$@"
