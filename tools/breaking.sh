#!/bin/sh
# breaking BASE BUF...
#
# Compares proto/ with what git revision BASE has, with the command BUF. There is nothing to break where BASE has no
# proto/ yet.
set -eu
base=$1
shift
if ! git rev-parse --quiet --verify "$base^{commit}" >/dev/null; then
	echo "there is no git revision $base" >&2
	exit 1
fi
# On main itself the revision before it is what callers have.
if [ "$(git rev-parse "$base")" = "$(git rev-parse HEAD)" ] && git rev-parse --quiet --verify HEAD~1 >/dev/null; then
	base=HEAD~1
fi
if ! git cat-file -e "$base:proto" 2>/dev/null; then
	echo "$base has no proto/: nothing to compare with"
	exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git archive "$base" buf.yaml ':(glob)**/*.proto' | tar -x -C "$work"
# The workspace has several modules and an image has one, so both sides name proto/ alone.
"$@" build "$work/proto" -o "$work/base.binpb"
"$@" breaking proto --against "$work/base.binpb"
