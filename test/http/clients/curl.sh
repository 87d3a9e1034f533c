#!/bin/sh
# Uses curl to make the calls that a file lists (in each line a method, a path and a body, separated
# by tabs), and prints the status of each reply.
while IFS="$(printf '\t')" read -r method path body; do
  if [ "$method" = GET ]; then
    curl -s -o /dev/null -w '%{http_code}\n' "$1$path"
  else
    curl -s -o /dev/null -w '%{http_code}\n' -H 'content-type: application/json' -d "$body" "$1$path"
  fi
done <"$2"
