#!/bin/sh
# Uses wget to make the calls that a file lists, and prints the status of each reply, like curl.sh.
while IFS="$(printf '\t')" read -r method path body; do
  if [ "$method" = GET ]; then
    wget -S -q -O /dev/null "$1$path" 2>&1
  else
    wget -S -q -O /dev/null --header 'content-type: application/json' --post-data "$body" "$1$path" 2>&1
  fi | sed -n 's/^ *HTTP\/1.1 \([0-9]*\).*/\1/p'
done <"$2"
