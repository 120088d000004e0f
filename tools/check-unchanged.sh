#!/bin/sh
# check-unchanged FOLDER COMMAND...
#
# Runs COMMAND, which writes FOLDER anew, and fails if that changed anything. It compares files, not git's index, so it
# also works on a tree with uncommitted changes.
set -eu
folder=$1
shift
before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
cp -R "$folder/." "$before"
"$@"
if ! diff -r "$before" "$folder"; then
	echo "$folder was out of date: it is written anew, commit it" >&2
	exit 1
fi
