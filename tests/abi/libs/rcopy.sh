#!/bin/sh
# rcopy.sh SERVER: copies a file through rcopy's server SERVER, on the same disk, and compares the
# two files.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
head -c 3000000 /dev/urandom >"$folder/from"
rcopy "$folder/from" "$1:$folder/to"
cmp "$folder/from" "$folder/to"
echo "rcopy: same"
