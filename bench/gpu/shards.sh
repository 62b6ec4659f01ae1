#!/bin/sh
# A GoogleTest program in parts that run at the same time:
#   shards.sh N REPORT PROGRAM WORD…      part i of them writes REPORT.i; ends with the exit code of a part that failed
parts=$1 report=$2 worst=0 all=
shift 2
for part in $(seq 0 $((parts - 1))); do
  GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$part "$@" "--gtest_output=json:$report.$part" &
  all="$all $!"
done
for one in $all; do wait "$one" || worst=$?; done
exit $worst
