#!/bin/sh
# Runs a GoogleTest program in N parts at the same time:
#   shards.sh N REPORT PROGRAM WORD…      part i writes REPORT.i; the exit code is that of a part that failed, else 0
parts=$1 report=$2 worst=0 all=
shift 2
for part in $(seq 0 $((parts - 1))); do
  GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$part "$@" "--gtest_output=json:$report.$part" &
  all="$all $!"
done
for one in $all; do wait "$one" || worst=$?; done
exit $worst
