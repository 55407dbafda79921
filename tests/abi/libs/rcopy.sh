#!/bin/sh
# rcopy.sh SERVER: copies a file to where rcopy's server SERVER runs, on this disk, and compares the two.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
head -c 3000000 /dev/urandom >"$folder/from"
rcopy "$folder/from" "$1:$folder/to"
cmp "$folder/from" "$folder/to"
echo "rcopy: same"
